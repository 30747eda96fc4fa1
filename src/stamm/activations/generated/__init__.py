"""Kernels that `python -m stamm.activations.emission` wrote from the catalogue: do not edit."""
