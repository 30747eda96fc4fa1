"""Decontamination: texts of evaluation sets in the corpus."""
