"""Preference losses: a class for each, its settings and its formula."""
