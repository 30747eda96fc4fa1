"""Pure functions: what a model is trained on."""
