"""Figures and tables of a corpus on the page of a run."""
