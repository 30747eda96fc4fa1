"""Trainable text classifiers: a score in [0, 1] for a document, for toxicity or quality."""
