"""A Spec defines an activation function by its gradient: formula language, fields and checks."""

from stamm.activations.spec.spec import Spec
from stamm.activations.spec.unchecked import (
    Compat,
    Constant,
    Factor,
    Gated,
    Jump,
    Piece,
    Plain,
)

__all__ = ["Compat", "Constant", "Factor", "Gated", "Jump", "Piece", "Plain", "Spec"]
