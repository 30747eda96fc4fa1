"""Alignment data: rows as typed examples, and their encoded form."""
