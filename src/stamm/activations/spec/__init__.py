"""A Spec states an activation function as its gradient: its language, its parts and its checks."""

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
