"""Whose word counts: robots.txt, lists of refusing domains, and the agents they are asked about."""
