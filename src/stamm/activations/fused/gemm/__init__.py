"""Matrix products with an activation in their last step: one pass over memory less each way."""
