"""Transparency documents: a data card, and the public summary that the EU's AI Act requires."""
