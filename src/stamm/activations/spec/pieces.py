"""The parts of a Spec: pieces of a gradient, jumps, orders of evaluation, and inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A formula and where it holds: `where` is "x > 0", "a < x <= 1" or "all x".

    integral   an antiderivative of the formula, where one is known: it is proved by
               differentiation, fixes no constant and is not part of the identity
    """

    where: str
    formula: str
    integral: str = ""


@dataclass(frozen=True, kw_only=True)
class Jump:
    """The function (not its gradient) jumps: f(at+) - f(at-) = by. `at` is a knot."""

    at: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A named number."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Compat:
    """Another library's order of evaluation, kept operation by operation.

    pieces      the function (not its gradient) as that library writes it; the first piece whose
                condition holds is taken, the last one is the remainder
    constants   numbers that only this order of evaluation needs
    source      where the order was read
    """

    name: str
    pieces: tuple[Piece, ...]
    constants: tuple[Constant, ...] = ()
    source: str


@dataclass(frozen=True, kw_only=True)
class Plain:
    """One input: y = f(x)."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The factor h(up) of a gate, where it is not the up input itself, stated as its gradient.

    h'(x) = the formula of the piece that holds x;  h(anchor[0]) = anchor[1]. Formulas may use the
    spec's fixed parameters; trainable ones belong to the gate.
    """

    pieces: tuple[Piece, ...]
    anchor: tuple[str, str] = ("0", "0")


@dataclass(frozen=True, kw_only=True)
class Gated:
    """Two inputs: y = f(gate) * up, or f(gate) * h(up).

    order    1 when f is a bounded gate, 2 when f is itself a gate times its input
    layout   how a fused projection holds the two: which half comes first, or interleaved
    up       h, or None for the up input itself
    """

    order: Literal[1, 2]
    layout: Literal["gate_first", "up_first", "interleaved"] = "gate_first"
    up: Factor | None = None
