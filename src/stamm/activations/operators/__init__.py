"""Operators that make a Spec from Specs: all work on the gradient, the function follows from it.

Those in `composed` and `clipped` need the function itself and hence SymPy; they are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stamm.activations.operators.algebra import (
    affine,
    concave,
    reflect,
    saturate,
    scale,
    surrogate,
)
from stamm.activations.operators.combining import clip, leak, mix
from stamm.activations.operators.gates import Gate, expand, gate_spec, gated, self_gated
from stamm.activations.operators.numbers import Number
from stamm.activations.operators.renaming import renamed

if TYPE_CHECKING:
    from stamm.activations.operators.clipped import clip_output, clip_to_zero
    from stamm.activations.operators.composed import normalise, power, reanchor, soft_clamp

_HOMES = {
    "clip_output": "clipped",
    "clip_to_zero": "clipped",
    "normalise": "composed",
    "power": "composed",
    "reanchor": "composed",
    "soft_clamp": "composed",
}

__all__ = [
    "Gate",
    "Number",
    "affine",
    "clip",
    "clip_output",
    "clip_to_zero",
    "concave",
    "expand",
    "gate_spec",
    "gated",
    "leak",
    "mix",
    "normalise",
    "power",
    "reanchor",
    "reflect",
    "renamed",
    "saturate",
    "scale",
    "self_gated",
    "soft_clamp",
    "surrogate",
]


def __getattr__(name: str) -> Any:
    """An operator that needs SymPy, imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
