"""Operators that make a Spec from a Spec: expand a gate, gate by itself, lift to two inputs.

They work on the gradient, as everything here does: the function follows by integration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from stamm.activations.spec import Gated, Identity, Parameter, Piece, Spec

ALPHA = Parameter(name="alpha", initial=0.0, bijection=Identity())
_EXPANDING = "Huang 2024, Expanded Gating Ranges Improve Activation Functions (arXiv 2405.20768)"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate G that rises from 0 to 1 with G(0) = 1/2, given by its density G'.

    cdf       the gate as a formula; `gate_spec` has it derived again from the density
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
    Source   arXiv 2405.20768; alpha is one unconstrained number per block.
    """
    shift = " - alpha" if of == "self_gated" else ""
    return replace(
        spec,
        name=name,
        title=title,
        pieces=tuple(
            replace(piece, formula=f"(1 + 2*alpha)*({piece.formula}){shift}")
            for piece in spec.pieces
        ),
        parameters=(ALPHA, *spec.parameters),
        source=_EXPANDING,
        aliases=(),
    )


def gated(
    spec: Spec, *, order: Literal[1, 2], name: str, title: str, aliases: tuple[str, ...] = ()
) -> Spec:
    """The two-input form: y = f(gate) * up."""
    return replace(
        spec,
        name=name,
        title=title,
        arity=Gated(order=order),
        aliases=aliases,
        source=f"{spec.source}; gated linear units: Shazeer 2020 (arXiv 2002.05202)",
    )
