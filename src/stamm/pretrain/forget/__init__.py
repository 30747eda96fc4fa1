"""Exact unlearning: training as if documents had never been in the corpus."""
