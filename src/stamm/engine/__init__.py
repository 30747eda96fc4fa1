"""The training loop, its checkpoints, and what a run will cost before it starts."""
