"""Cost of activations on this machine, beside other implementations of the same function."""
