"""Fused kernels: the torch functions of a spec in one pass over memory."""
