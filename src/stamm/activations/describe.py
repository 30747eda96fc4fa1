"""What there is to say about an activation, as plain data: no SymPy, no torch."""

from __future__ import annotations

from typing import Any

from stamm.activations import catalog
from stamm.activations.generated.metadata import METADATA
from stamm.activations.spec import Fixed, Gated, Identity, Parameter, Spec
from stamm.base.errors import ConfigError


def describe(name: str) -> dict[str, Any]:
    """Everything about a catalogue entry, as JSON values.

    name, title, gated (None, or order and layout), gradient and function and slopes as
    [{where, formula}], parameters with constraint and initial values (effective and raw),
    content_hash, source, aliases, compat orders, notes.

    Raises   ConfigError for an unknown name, or when the generated texts belong to another spec.
    Checked  tests/unit/activations/test_describe.py
    """
    spec = catalog.get(name)
    texts = METADATA.get(spec.name, {})
    if texts.get("content_hash") != spec.content_hash:
        raise ConfigError(
            f"the generated texts of {spec.name} do not belong to its spec",
            fix="Run python -m stamm.activations.emit",
        )
    return {
        "name": spec.name,
        "title": spec.title,
        "output": "f(gate) * up" if isinstance(spec.arity, Gated) else "f(x)",
        "gated": _gated(spec),
        "gradient": [{"where": p.where, "formula": p.formula} for p in spec.pieces],
        "continuity": spec.continuity,
        "anchor": f"f({spec.anchor[0]}) = {spec.anchor[1]}",
        "function": texts["function"],
        "curvature": texts["curvature"],
        "parameter_slopes": texts["parameter_slopes"],
        "parameters": _parameters(spec),
        "content_hash": spec.content_hash,
        "source": spec.source,
        "aliases": list(spec.aliases),
        "compat": _compat(spec),
        "notes": spec.notes,
    }


def summaries() -> list[dict[str, Any]]:
    """One line's worth of each entry, in catalogue order: name, title, arity, parameter names."""
    return [
        {
            "name": spec.name,
            "title": spec.title,
            "inputs": 2 if isinstance(spec.arity, Gated) else 1,
            "trainable": [p.name for p in spec.trainable],
            "aliases": list(spec.aliases),
            "source": spec.source,
        }
        for spec in catalog.ENTRIES
    ]


def constraint(parameter: Parameter) -> str:
    """How the effective value follows from the stored one, in one formula."""
    if isinstance(parameter.bijection, Fixed):
        return f"{parameter.name} = {parameter.initial:g}, fixed"
    if isinstance(parameter.bijection, Identity):
        return f"{parameter.name} = raw"
    above = parameter.bijection.above
    return f"{parameter.name} = {'' if above == '0' else above + ' + '}softplus(raw)"


def _parameters(spec: Spec) -> list[dict[str, Any]]:
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    return [
        {
            "name": p.name,
            "trainable": p.trainable,
            "constraint": constraint(p),
            "initial": p.initial,
            "initial_raw": raw.get(p.name),
        }
        for p in spec.parameters
    ]


def _gated(spec: Spec) -> dict[str, Any] | None:
    if not isinstance(spec.arity, Gated):
        return None
    return {"order": spec.arity.order, "layout": spec.arity.layout}


def _compat(spec: Spec) -> dict[str, Any] | None:
    if spec.compat is None:
        return None
    return {
        "name": spec.compat.name,
        "pieces": [{"where": p.where, "formula": p.formula} for p in spec.compat.pieces],
        "constants": {c.name: c.value for c in spec.compat.constants},
        "source": spec.compat.source,
    }
