"""The training loop, its checkpoints, and estimates of the cost of a run."""
