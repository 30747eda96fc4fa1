"""Steering vectors of a model, and their measured price."""
