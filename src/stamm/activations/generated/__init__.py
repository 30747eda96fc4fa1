"""Kernels that `python -m stamm.activations.emit` wrote from the catalogue: do not edit."""
