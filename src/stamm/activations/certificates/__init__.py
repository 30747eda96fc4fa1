"""Claims proved, or else measured, of an activation before any training."""
