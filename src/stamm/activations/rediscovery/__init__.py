"""Whether a new activation is a known one: the same function, an affine map of it, or near it."""

from stamm.activations.rediscovery.detect import rediscover
from stamm.activations.rediscovery.finding import Affine, Finding

__all__ = ["Affine", "Finding", "rediscover"]
