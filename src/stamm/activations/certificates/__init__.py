"""What can be proved, or else measured, of an activation before any training."""
