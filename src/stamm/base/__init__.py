"""Errors, configuration, atomic files, units and the console. No torch."""
