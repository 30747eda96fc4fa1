"""The run folder: request, environment, steps, receipts and outputs of a run."""
