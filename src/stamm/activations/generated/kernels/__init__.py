"""Kernels that `python -m stamm.activations.codegen` wrote from the catalogue: do not edit."""
