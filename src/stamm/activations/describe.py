"""Descriptions of activations as plain data: certificate, cost, learned curve. Needs neither SymPy nor torch."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.activations import catalog
from stamm.activations.spec import Compat, Gated, Piece, Spec
from stamm.activations.spec.expressions import evaluate, parse
from stamm.activations.spec.gradient_checks import StatedGradient
from stamm.activations.spec.shipped import NAMES
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
    texts: dict[str, Any] = read_json(path) if path.is_file() else {}
    return texts


def certificate(spec: Spec) -> dict[str, Any] | None:
    """The shipped certificate of a spec; None when there is none for what it computes."""
    path = _GENERATED / "certificates" / f"{spec.name}.json"
    stored: dict[str, Any] | None = read_json(path) if path.is_file() else None
    return stored if stored and stored.get("content_hash") == spec.content_hash else None


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


_KERNELS = Path(__file__).parent / "generated" / "kernels"
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
# Not counted as arithmetic: selecting between pieces, and clamping a piece into its interval.
_SELECTING = {"where", "clamp", "at_least", "at_most"}
_FILLING = {"zeros_like", "full_like", "ones_like"}


def shipped_source(spec: Spec) -> str | None:
    """The text of the kernel that ships for a spec, or None when none does."""
    name = NAMES.get(spec.content_hash)
    path = _KERNELS / f"{name}.py"
    return path.read_text(encoding="utf-8") if name is not None and path.is_file() else None


def cost(spec: Spec, source: str) -> dict[str, Any]:
    """The cost of one element, as JSON values.

    parameters   number of trainable parameters
    forward      operations of f(x); backward: those of f'(x) and the slope in each parameter.
                 Each is {calls: {name: count}, arithmetic: + - * / **, selections}
    saved        the tensors saved for the backward pass, as text, and `saved_inputs`, the number
                 of saved elements per output element

    Edge         the backward pass takes f and f' together and shares their calls; numbers are of
                 the formulas as written, before a compiler fuses them.
    Checked      tests/unit/activations/test_activation_page.py
    """
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    gated = isinstance(spec.arity, Gated)
    return {
        "parameters": len(spec.trainable),
        "forward": _operations(functions["value"]),
        "backward": _operations(functions["slopes"]),
        "saved": "the gate and up inputs" if gated else "the input",
        "saved_inputs": 2 if gated else 1,
    }


def operations_text(operations: dict[str, Any]) -> str:
    """A count as text: "1 exp, 1 phi2, 12 arithmetic, 2 selections"."""
    calls = [f"{count} {name}" for name, count in operations["calls"].items()]
    selections = operations["selections"]
    chosen = [f"{selections} selection{'' if selections == 1 else 's'}"] if selections else []
    return ", ".join([*calls, f"{operations['arithmetic']} arithmetic", *chosen])


def _operations(function: ast.FunctionDef) -> dict[str, Any]:
    calls: Counter[str] = Counter()
    arithmetic = 0
    selections = 0
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
            arithmetic += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = re.sub("_(negative|positive|pair)$", "", node.func.attr)
            if name in _SELECTING:
                selections += name == "where"
            elif name not in _FILLING:
                calls[name] += 1
    return {
        "calls": dict(sorted(calls.items())),
        "arithmetic": arithmetic,
        "selections": selections,
    }


# Gauss-Legendre nodes and weights on [-1, 1], three points: exact for polynomials of degree five
_NODES = (-math.sqrt(0.6), 0.0, math.sqrt(0.6))
_WEIGHTS = (5 / 9, 8 / 9, 5 / 9)


@dataclass(frozen=True, kw_only=True)
class LearnedCurve:
    """A function and its gradient on a grid."""

    x: tuple[float, ...]
    value: tuple[float, ...]
    slope: tuple[float, ...]


def known_spec(activation: str | None) -> Spec | None:
    """The catalogue's entry, or None for a name that it does not have."""
    try:
        return catalog.get(activation) if activation else None
    except ConfigError:
        return None


def learned_curve(spec: Spec, effective: Mapping[str, float], x: Sequence[float]) -> LearnedCurve:
    """f and f' at `x`, given effective values of the trainable parameters.

    f(x) = f(x0) + integral of the stated gradient from x0 to x, in steps of at most 1/64 that end
    at the knots of the pieces.

    Edge     at a knot the gradient is that of the piece which holds it.
    Checked  tests/unit/reports/test_drawing.py, against closed forms
    """
    values = {**spec.initial_values(), **effective}
    slope = StatedGradient(spec, values)
    start, height = (evaluate(parse(text), values) for text in spec.anchor)
    grid = sorted(x)
    at: dict[float, float] = {}
    for side in ([v for v in grid if v >= start], [v for v in reversed(grid) if v < start]):
        position, total = start, height
        for target in side:
            total += _integral(slope, position, target)
            position = target
            at[target] = total
    return LearnedCurve(
        x=tuple(grid), value=tuple(at[v] for v in grid), slope=tuple(slope(v) for v in grid)
    )


def _integral(slope: StatedGradient, start: float, end: float) -> float:
    """The integral of the gradient from `start` to `end`, never across a knot in one step."""
    sign, low, high = (1.0, start, end) if end >= start else (-1.0, end, start)
    borders = [low, *(knot for knot in slope.knots if low < knot < high), high]
    total = 0.0
    for left, right in itertools.pairwise(borders):
        steps = max(math.ceil((right - left) * 64), 1)
        half = (right - left) / steps / 2
        for i in range(steps):
            middle = left + (2 * i + 1) * half
            total += half * sum(
                weight * slope(middle + half * node)
                for node, weight in zip(_NODES, _WEIGHTS, strict=True)
            )
    return sign * total
