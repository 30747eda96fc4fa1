"""Byte-level tokenizers: ours, and imported ones."""
