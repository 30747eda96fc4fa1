"""Branches of a derived function: cut, evaluated, searched for crossings, turned into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Symbol

from stamm.activations.derivation.formulas import Branch, Branches, bounds
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stable_forms import sample_points
from stamm.activations.derivation.symbolic import number, to_sympy
from stamm.activations.derivation.to_text import to_text
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.expressions import parse
from stamm.activations.transforms.parts import Part, pieces_of
from stamm.base.errors import ConfigError

Values = Mapping[str, float]
DIGITS = 30
_FARTHEST = 64  # crossings are searched this far out
_STEPS = 32  # points searched per unit


def read(text: str, spec: Spec) -> Expr:
    """A formula of the spec as a SymPy expression in its parameters."""
    symbols = {p.name: Symbol(p.name, real=True) for p in spec.parameters}
    return to_sympy(parse(text, where=spec.where), symbols)


def same_place(left: Expr, right: Expr, samples: Sequence[Values]) -> bool:
    """Whether two places are the same at all sample values."""
    return all(number(left, values) == number(right, values) for values in samples)


def side_of(branch: Branch, knot: Expr, values: Values) -> int:
    """-1, 0 or 1: whether a branch lies below a knot, holds it inside, or lies above it."""
    low, high = bounds(branch, values)
    at = number(knot, values)
    return -1 if high <= at else 1 if low >= at else 0


def value_at(function: Branches, place: Expr, spec: Spec) -> Expr:
    """f(place) as a formula in the parameters.

    Raises   ConfigError when which branch holds it depends on the parameters.
    """
    holds = {
        next(i for i, b in enumerate(function) if number(place, v) <= bounds(b, v)[1])
        for v in spec.sample_values()
    }
    if len(holds) > 1:
        raise ConfigError(
            f"which piece of {spec.name} holds {place} depends on the parameters", where=spec.where
        )
    return function[holds.pop()].formula.subs(X, place)


def between(whole: Branch, low: Expr, high: Expr) -> Branch:
    """The branch between two places inside it; a place where it is cut belongs to the left side."""
    return Branch(
        low=low,
        low_closed=whole.low_closed if low == whole.low else False,
        high=high,
        high_closed=whole.high_closed if high == whole.high else True,
        formula=whole.formula,
    )


def piece_of(branch: Branch, formula: str, integral: str, spec: Spec) -> Piece:
    """A branch as a piece with another formula, and its known integral."""
    ends = [
        None if end in (sympy.oo, -sympy.oo) else to_text(end, where=spec.where)
        for end in (branch.low, branch.high)
    ]
    part = Part(
        low=ends[0],
        low_closed=branch.low_closed,
        high=ends[1],
        high_closed=branch.high_closed,
        formula=formula,
        integral=integral,
    )
    return pieces_of([part])[0]


def within(end: Any, reach: int) -> Any:
    """The end of a branch, no farther out than `reach`, as an mpmath number."""
    return mpmath.mpf(min(max(end, -reach), reach))


def levels(whole: Branch, level: Expr, values: Values) -> list[tuple[Expr, Expr, bool]]:
    """Where a branch is above the level and where not: (low, high, above), from left to right."""
    left, right = (within(end, _FARTHEST) for end in bounds(whole, values))

    def excess(x: Any) -> Any:
        return number(whole.formula - level, {**values, X.name: mpmath.mpf(x)})

    steps = max(2, int(_STEPS * (right - left)))
    places = [left + (right - left) * i / steps for i in range(steps + 1)]
    heights = [excess(place) for place in places]
    cuts: list[Expr] = [whole.low]
    for i in range(steps):
        below, above = heights[i], heights[i + 1]
        if below * above < 0:
            root = _bisected(excess, places[i], places[i + 1])
            cuts.append(_exactly(root, excess))
        elif above == 0 and i + 1 < steps and below * heights[i + 2] < 0:
            cuts.append(_exactly(places[i + 1], excess))
    cuts.append(whole.high)
    spans = []
    for low, high in itertools.pairwise(cuts):
        ends = [
            left if low == whole.low else number(low, {}),
            right if high == whole.high else number(high, {}),
        ]
        spans.append((low, high, bool(excess((ends[0] + ends[1]) / 2) > 0)))
    return spans


def _bisected(excess: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The crossing between two places, to the working precision."""
    rising = excess(high) > 0
    for _ in range(mpmath.mp.prec):
        middle = (low + high) / 2
        if (excess(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _exactly(root: Any, excess: Callable[[Any], Any]) -> Expr:
    """A crossing as a rational number: a short one that is exact, or its first 30 digits."""
    digits = mpmath.nstr(root, 12, strip_zeros=True)
    short = sympy.nsimplify(digits, rational=True)
    if excess(mpmath.mpf(int(short.p)) / int(short.q)) == 0:
        return short
    return sympy.Rational(int(mpmath.nint(root * mpmath.mpf(10) ** DIGITS)), 10**DIGITS)


def check_no_surrogate(spec: Spec) -> None:
    """Raise when a spec has a surrogate, which a composition would lose."""
    if spec.surrogate:
        raise ConfigError(
            f"{spec.name} has a surrogate backward pass, which a composition would lose",
            where=spec.where,
            fix="Compose the function first and give the result a surrogate",
        )


def check_sign(spec: Spec, branch: Branch, sign: int, reason: str) -> None:
    """Raise when f is of the other sign somewhere on a branch, at any sample values."""
    for values in spec.sample_values():
        for point in sample_points(*bounds(branch, values)):
            if abs(point) > _FARTHEST:
                continue
            height = number(branch.formula, {**values, X.name: point})
            if sign * height < 0:
                raise ConfigError(
                    f"{spec.name} is {mpmath.nstr(height, 6)} at x = {mpmath.nstr(point, 6)}"
                    f"{_given(values)}; {reason}",
                    where=spec.where,
                    fix="Use an integer exponent, or for signed functions odd=True",
                )


def _given(values: Values) -> str:
    listed = ", ".join(f"{name} = {value:g}" for name, value in values.items())
    return f" with {listed}" if listed else ""
