"""Prompts to responses with Hugging Face models: keyed sampling, a decoding loop, a journal.

The names of `__init__.pyi` may be imported from here; torch is imported with the first that needs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
