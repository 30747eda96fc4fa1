"""Schemas of the files in a run folder, read and written by `stamm.base.schema`."""
