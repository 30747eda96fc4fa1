"""The run folder: what was asked, what was done, with what, and what it left."""
