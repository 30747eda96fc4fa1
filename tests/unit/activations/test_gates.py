"""Specs made from gates: the derived function is the one composed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import pytest

from stamm.activations import catalog
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import Branches, bounds, number
from stamm.activations.derivation.primitives import X
from stamm.activations.spec import Factor, Gated, Jump, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.gates import expand, gated
from stamm.activations.spec.parameters import Between, Parameter
from stamm.base.errors import ConfigError

SOFT = spec_from_arguments(["all x: logistic(x) | softplus(x)"], name="soft", anchor="0=log(2)")
# A threshold that moves, and a function that jumps there.
FAT = Spec(
    name="fat",
    title="Rectifier with a moving threshold",
    pieces=(Piece(where="x > tau", formula="1"), Piece(where="x <= tau", formula="0")),
    parameters=(Parameter(name="tau", initial=0.3, bijection=Between(low=0.1, high=0.9)),),
    continuity="jump",
    jumps=(Jump(at="tau", by="tau"),),
    source="test",
)
POINTS = [mpmath.mpf(p) / 8 for p in (-61, -23, -11, -8, -3, 0, 1, 5, 7, 9, 13, 24, 57)]
Real = Callable[[Any], Any]
LABEL: Mapping[str, str] = {"name": "made", "title": "Made"}


def valued(spec: Spec, values: Mapping[str, float] | None = None) -> Real:
    return pick(exact_formulas(spec).function, values or spec.initial_values())


def pick(branches: Branches, values: Mapping[str, float]) -> Real:
    def at(x: Any) -> Any:
        for branch in branches:
            low, high = bounds(branch, values)
            above = x > low or (branch.low_closed and x == low)
            if above and (x < high or (branch.high_closed and x == high)):
                return number(branch.formula, {**values, X.name: mpmath.mpf(x)})
        raise AssertionError(x)

    return at


def agree(made: Spec, composed: Real, values: Mapping[str, float] | None = None) -> None:
    """f of the result is what was composed, and f' is its slope, to 30 digits."""
    with mpmath.workdps(45):
        function = valued(made, values)
        slope = pick(exact_formulas(made).slope, values or made.initial_values())
        for x in POINTS:
            wanted = composed(x)
            assert abs(function(x) - wanted) <= mpmath.mpf(10) ** -30 * (1 + abs(wanted)), x
            around = x + mpmath.mpf(1) / 997  # away from every knot
            tiny = mpmath.mpf(10) ** -12
            secant = (function(around + tiny) - function(around - tiny)) / (2 * tiny)
            assert abs(secant - slope(around)) <= mpmath.mpf(10) ** -20 * (1 + abs(secant)), x


def test_expand_carries_integrals_jumps_and_anchors() -> None:
    made = expand(SOFT, of="self_gated", **LABEL)
    f, alpha = valued(SOFT), mpmath.mpf(0.3)
    agree(made, lambda x: (1 + 2 * alpha) * f(x) - alpha * x, {"alpha": 0.3})
    jumped = expand(FAT, of="gate", **LABEL)
    g = valued(FAT)
    agree(jumped, lambda x: (1 + 2 * alpha) * g(x) - alpha, {"alpha": 0.3, "tau": 0.3})
    with pytest.raises(ConfigError, match="has a parameter 'alpha' already"):
        expand(catalog.XSILU, of="self_gated", **LABEL)


def test_lifting_takes_a_layout_and_an_up_factor() -> None:
    up = Factor(pieces=(Piece(where="all x", formula="1"),), anchor=("0", "1"))
    made = gated(catalog.SILU, order=2, layout="interleaved", up=up, **LABEL)
    assert made.arity == Gated(order=2, layout="interleaved", up=up)
    refusal = "two inputs; `expand` and `gated` take a function of one"
    with pytest.raises(ConfigError, match=refusal):
        expand(made, of="gate", **LABEL)
    with pytest.raises(ConfigError, match=refusal):
        gated(made, order=1, name="again", title="Again")
