"""Transforms that make a Spec from Specs: all work on the gradient; the function is derived from it.

Each is imported on first use. Those in `composed` and `clipped` need the function itself and hence
SymPy; the others need neither SymPy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stamm.activations.transforms.algebra import (
        affine,
        concave,
        reflect,
        saturate,
        scale,
        surrogate,
    )
    from stamm.activations.transforms.clipped import clip_output, clip_to_zero
    from stamm.activations.transforms.combining import clip, leak, mix
    from stamm.activations.transforms.composed import normalise, power, reanchor, soft_clamp
    from stamm.activations.transforms.gates import Gate, expand, gate_spec, gated, self_gated
    from stamm.activations.transforms.numbers import Number
    from stamm.activations.transforms.renaming import renamed

_FILES = {
    "algebra": ("affine", "concave", "reflect", "saturate", "scale", "surrogate"),
    "clipped": ("clip_output", "clip_to_zero"),
    "combining": ("clip", "leak", "mix"),
    "composed": ("normalise", "power", "reanchor", "soft_clamp"),
    "gates": ("Gate", "expand", "gate_spec", "gated", "self_gated"),
    "numbers": ("Number",),
    "renaming": ("renamed",),
}
_HOMES = {name: file for file, members in _FILES.items() for name in members}

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


if not TYPE_CHECKING:  # a type checker reports a name that is not public

    def __getattr__(name: str) -> Any:
        """A transform, imported from its file on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
