"""Trainable heads: a score in [0, 1] for a document, such as its toxicity or its quality."""
