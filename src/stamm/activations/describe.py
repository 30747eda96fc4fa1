"""Descriptions of activations as plain data, without SymPy or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stamm.activations import catalog
from stamm.activations.spec import Compat, Gated, Piece, Spec
from stamm.base.errors import ConfigError
from stamm.base.files import read_json

_GENERATED = Path(__file__).parent / "generated"


def describe(name: str) -> dict[str, Any]:
    """Everything about a catalogue entry, as JSON values.

    The keys of `describe_spec`, and `certificate`: properties proved and measured at the initial
    values.

    Raises   ConfigError for an unknown name, or when the generated texts belong to another spec.
    Checked  tests/unit/activations/test_describe.py
    """
    spec = catalog.get(name)
    texts = shipped(spec.name)
    if texts.get("content_hash") != spec.content_hash:
        raise ConfigError(
            f"the generated texts of {spec.name} do not belong to its spec",
            fix="Run python -m stamm.activations.codegen",
        )
    return {**describe_spec(spec, texts), "certificate": certificate(spec)}


def describe_spec(spec: Spec, texts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a spec as JSON values, under the keys that `describe` has for the catalogue.

    texts   the result of `codegen.write.texts`: function, curvature, parameter_slopes
    """
    arity = spec.arity if isinstance(spec.arity, Gated) else None
    up = arity.up if arity is not None else None
    by = "h(up)" if up else "up"
    return {
        "name": spec.name,
        "title": spec.title,
        "output": f"f(gate) * {by}" if arity is not None else "f(x)",
        "gated": None if arity is None else {"order": arity.order, "layout": arity.layout},
        "gradient": _pieces(spec.pieces),
        "continuity": spec.continuity,
        "anchor": f"f({spec.anchor[0]}) = {spec.anchor[1]}",
        "jumps": [{"at": jump.at, "by": jump.by} for jump in spec.jumps],
        "surrogate": _pieces(spec.surrogate),
        "up": None
        if up is None
        else {"gradient": _pieces(up.pieces), "anchor": f"h({up.anchor[0]}) = {up.anchor[1]}"},
        "function": texts["function"],
        "curvature": texts["curvature"],
        "parameter_slopes": texts["parameter_slopes"],
        "parameters": _parameters(spec),
        "content_hash": spec.content_hash,
        "source": spec.source,
        "aliases": list(spec.aliases),
        "compat": _compat(spec.compat),
        "notes": spec.notes,
        "peers": list(spec.peers),
    }


def summaries() -> list[dict[str, Any]]:
    """A short summary of each entry, in catalogue order: name, title, inputs, parameter names."""
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


def shipped(name: str) -> dict[str, Any]:
    """The generated texts of an entry; empty when there are none."""
    path = _GENERATED / "entries" / f"{name}.json"
    found: dict[str, Any] = read_json(path) if path.is_file() else {}
    return found


def certificate(spec: Spec) -> dict[str, Any] | None:
    """The shipped certificate of a spec; None when there is none for what it computes."""
    path = _GENERATED / "certificates" / f"{spec.name}.json"
    found: dict[str, Any] | None = read_json(path) if path.is_file() else None
    return found if found and found.get("content_hash") == spec.content_hash else None


def _pieces(pieces: Sequence[Piece]) -> list[dict[str, str]]:
    return [{"where": piece.where, "formula": piece.formula} for piece in pieces]


def _parameters(spec: Spec) -> list[dict[str, Any]]:
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    return [
        {
            "name": p.name,
            "trainable": p.trainable,
            "constraint": p.constraint,
            "initial": p.initial,
            "initial_raw": raw.get(p.name),
        }
        for p in spec.parameters
    ]


def _compat(compat: Compat | None) -> dict[str, Any] | None:
    if compat is None:
        return None
    return {
        "name": compat.name,
        "pieces": _pieces(compat.pieces),
        "constants": {c.name: c.value for c in compat.constants},
        "source": compat.source,
    }
