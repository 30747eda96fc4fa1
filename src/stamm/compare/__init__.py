"""Comparisons of activations: plan, looks, verdict, page."""
