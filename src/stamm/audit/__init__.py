"""Memorization audit of a trained decoder: planted passages against passages never seen."""
