"""Equivalence of a new activation with a known one: equal, an affine map of it, or near it."""

from stamm.activations.equivalence.detect import rediscover
from stamm.activations.equivalence.finding import Affine, Finding

__all__ = ["Affine", "Finding", "rediscover"]
