"""Equivalence of a new activation with a known one: equal, an affine map of it, or near it."""

from stamm.activations.equivalence.compare import Affine, Finding, rediscover

__all__ = ["Affine", "Finding", "rediscover"]
