"""Activation functions derived from their gradients: state the gradient, get everything else.

Names are loaded when they are first used, so that the mathematics needs no torch and a model
needs no SymPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stamm.activations.catalog import get, names
    from stamm.activations.derivation import Derived, derive
    from stamm.activations.module import Activation, GatedActivation, build_activation, xielu
    from stamm.activations.operators import Gate, expand, gate_spec, gated, self_gated
    from stamm.activations.spec import (
        Compat,
        Constant,
        Fixed,
        Gated,
        Identity,
        Parameter,
        Piece,
        Plain,
        Softplus,
        Spec,
    )

_HOMES = {
    "catalog": ("get", "names"),
    "derivation": ("Derived", "derive"),
    "module": ("Activation", "GatedActivation", "build_activation", "xielu"),
    "operators": ("Gate", "expand", "gate_spec", "gated", "self_gated"),
    "spec": (
        "Compat",
        "Constant",
        "Fixed",
        "Gated",
        "Identity",
        "Parameter",
        "Piece",
        "Plain",
        "Softplus",
        "Spec",
    ),
}
_HOME = {name: home for home, members in _HOMES.items() for name in members}

__all__ = [
    "Activation",
    "Compat",
    "Constant",
    "Derived",
    "Fixed",
    "Gate",
    "Gated",
    "GatedActivation",
    "Identity",
    "Parameter",
    "Piece",
    "Plain",
    "Softplus",
    "Spec",
    "build_activation",
    "derive",
    "expand",
    "gate_spec",
    "gated",
    "get",
    "names",
    "self_gated",
    "xielu",
]


def __getattr__(name: str) -> Any:
    """The public name, imported from its file on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
