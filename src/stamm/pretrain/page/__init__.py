"""Figures and tables of training on the page of a run."""
