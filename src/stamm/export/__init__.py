"""Export of a trained decoder to a folder that other libraries load, after a parity check."""
