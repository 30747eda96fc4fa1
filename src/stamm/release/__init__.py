"""A release: everything that a run leaves of one model, in a folder that anyone can verify offline."""
