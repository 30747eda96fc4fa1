"""Recipes: typed functions that say what to do."""
