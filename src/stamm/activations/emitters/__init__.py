"""Activations as source text of other languages and runtimes: `stamm emit`."""
