"""What activations cost on this machine, beside other implementations of the same function."""
