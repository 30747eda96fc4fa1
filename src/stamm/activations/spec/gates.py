"""Specs made from gates: the gate alone, self-gating, expanded gates, gated units of two inputs."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal

from stamm.activations.spec.expressions import parse
from stamm.activations.spec.parameters import Identity, Parameter
from stamm.activations.spec.spec import Spec
from stamm.activations.spec.unchecked import Factor, Gated, Jump, Piece
from stamm.base.errors import ConfigError

ALPHA = Parameter(name="alpha", initial=0.0, bijection=Identity())
_EXPANDING = "Huang 2024, Expanded Gating Ranges Improve Activation Functions (arXiv 2405.20768)"
_WIDENED = "(1 + 2*alpha)"
# Anchors that expanding does not move.
_KEPT = (("gate", "0", "1/2"), ("self_gated", "0", "0"))


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate G that rises from 0 to 1 with G(0) = 1/2, given by its density G'.

    cdf       the gate as a formula; `gate_spec` derives it from the density
    density   its derivative
    """

    name: str
    title: str
    cdf: str
    density: str
    source: str


def gate_spec(gate: Gate) -> Spec:
    """The gate alone: f' = G', f(0) = 1/2."""
    return Spec(
        name=gate.name,
        title=gate.title,
        pieces=(Piece(where="all x", formula=gate.density),),
        anchor=("0", "1/2"),
        source=gate.source,
    )


def self_gated(gate: Gate, *, name: str, title: str, aliases: tuple[str, ...] = ()) -> Spec:
    """The input times its gate, f = x G(x): f' = G + x G', f(0) = 0."""
    return Spec(
        name=name,
        title=title,
        pieces=(Piece(where="all x", formula=f"{gate.cdf} + x*({gate.density})"),),
        source=gate.source,
        aliases=aliases,
    )


def expand(spec: Spec, *, of: Literal["gate", "self_gated"], name: str, title: str) -> Spec:
    """The spec with its gate's range widened from (0, 1) to (-alpha, 1 + alpha).

    G becomes (1 + 2 alpha) G - alpha, so a gate's slope becomes (1 + 2 alpha) G' and a self-gated
    slope becomes (1 + 2 alpha) f' - alpha. alpha starts at 0, where nothing is changed.

    Edge     a gate keeps G(0) = 1/2 and a self-gated function keeps f(0) = 0 for every alpha.
    Raises   ConfigError when the spec has a parameter alpha already, or two inputs.
    Source   arXiv 2405.20768; alpha is one unconstrained number per block.
    Checked  tests/unit/activations/test_gates.py
    """
    _check_one_input(spec)
    if any(parameter.name == ALPHA.name for parameter in spec.parameters):
        raise ConfigError(
            f"{spec.name} has a parameter {ALPHA.name!r} already, which expanding would add",
            where=spec.where,
            fix="Expand a function without one, or mix it with x by hand",
        )
    subtracted = ALPHA.name if of == "self_gated" else ""
    start, height = spec.anchor
    if (of, start, height) not in _KEPT:
        taken = ALPHA.name if of == "gate" else "" if start == "0" else f"{ALPHA.name}*({start})"
        height = _times_widened(height)
        if taken:
            height = ast.unparse(parse(f"{height if height != '0' else ''} - {taken}"))
    return replace(
        spec,
        name=name,
        title=title,
        pieces=tuple(_widened(piece, subtracted) for piece in spec.pieces),
        parameters=(ALPHA, *spec.parameters),
        anchor=(start, height),
        jumps=tuple(Jump(at=j.at, by=_times_widened(j.by)) for j in spec.jumps),
        surrogate=tuple(_widened(piece, subtracted) for piece in spec.surrogate),
        compat=None,
        source=_EXPANDING,
        aliases=(),
        notes="",
        peers=(),
    )


def gated(
    spec: Spec,
    *,
    order: Literal[1, 2],
    name: str,
    title: str,
    aliases: tuple[str, ...] = (),
    layout: Literal["gate_first", "up_first", "interleaved"] = "gate_first",
    up: Factor | None = None,
) -> Spec:
    """The two-input form: y = f(gate) * up, or f(gate) * h(up) with h stated by `up`.

    order    1 when f is a bounded gate, 2 when f is itself a gate times its input
    layout   how a fused projection holds the two inputs
    Raises   ConfigError when the spec has two inputs already.
    """
    _check_one_input(spec)
    return replace(
        spec,
        name=name,
        title=title,
        arity=Gated(order=order, layout=layout, up=up),
        compat=None,
        aliases=aliases,
        peers=(),
        source=f"{spec.source}; gated linear units: Shazeer 2020 (arXiv 2002.05202)",
    )


def _check_one_input(spec: Spec) -> None:
    if isinstance(spec.arity, Gated):
        raise ConfigError(
            f"{spec.name} has two inputs; `expand` and `gated` take a function of one",
            where=spec.where,
            fix="Start from its gate as a function of one input: expand it first, then make it gated",
        )


def _times_widened(text: str) -> str:
    """(1 + 2 alpha) times a formula in the parameters, without a factor of 0 or 1."""
    if text in ("0", "1"):
        return "0" if text == "0" else ast.unparse(parse(_WIDENED))
    return ast.unparse(parse(f"{_WIDENED}*({text})"))


def _widened(piece: Piece, subtracted: str) -> Piece:
    """(1 + 2 alpha) times a piece of the gradient, minus the parameter `subtracted` if any."""
    shift = f" - {subtracted}" if subtracted else ""
    integral = ""
    if piece.integral:
        integral = f"{_WIDENED}*({piece.integral})" + (f"{shift}*x" if subtracted else "")
    return replace(piece, formula=f"{_WIDENED}*({piece.formula}){shift}", integral=integral)
