"""Figures and tables of alignment and its judges on the page of a run."""
