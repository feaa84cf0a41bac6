"""A checkpoint: its files, its fingerprint, its special tokens."""
