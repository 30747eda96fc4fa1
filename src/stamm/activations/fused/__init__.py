"""Fused kernels: what a spec's torch functions compute, as one pass over memory."""
