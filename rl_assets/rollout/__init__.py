"""Prompts to responses with Hugging Face models: keyed sampling, a decoding loop, a journal."""
