"""Sampling of completions, in batches and in the terminal."""
