"""A Spec defines an activation function by its gradient: formula language, fields and checks."""

from stamm.activations.spec.pieces import (
    Compat,
    Constant,
    Factor,
    Gated,
    Jump,
    Piece,
    Plain,
)
from stamm.activations.spec.spec import Spec

__all__ = ["Compat", "Constant", "Factor", "Gated", "Jump", "Piece", "Plain", "Spec"]
