"""Evaluation of a trained decoder: held-out text, minimal pairs, tasks from files."""
