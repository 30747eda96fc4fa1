"""Judges: a model that rates answers by the articles of a written charter, and orders them by pairs."""
