"""Texts of evaluation sets that stand in the corpus."""
