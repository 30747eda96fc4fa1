"""BPE tokenizers: training, tekken, encoding by two libraries, and fertility by language."""
