"""Figures and tables of memorization audits on the page of a run."""
