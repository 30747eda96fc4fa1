"""Policy gradient on answers that a model gives while it is trained."""
