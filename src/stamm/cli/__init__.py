"""The command line: verb, thing, changes."""
