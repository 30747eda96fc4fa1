"""Quotients that have a limit where their divisor is 0, such as tanh(x)/x: power series around 0.

A formula has no value where a divisor is 0. Where numerator and divisor of a gradient both vanish at
x = 0, its piece is split: `tanh(x)/x` is `1 - x**2/3 + ...` for -1/4 <= x <= 1/4, and itself beyond.
The series has exact coefficients, and as many terms as give the quotient to 2**-62.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from stamm.activations.spec.choices import interval_text
from stamm.activations.spec.expressions import (
    CONSTANTS,
    VARIABLE,
    divisors,
    evaluate,
    interpret,
    parse,
    parse_interval,
)
from stamm.activations.spec.unchecked import Piece

Series = list[Fraction]  # coefficients of 1, x, x**2, ...
Pieces = TypeVar("Pieces", bound=Sequence[Piece])
_TERMS = 72
_HIGHEST = 40  # power of x
_WIDTH = Fraction(1, 4)
_ALLOWED = Fraction(1, 2**62)
_MOST_CHARACTERS = 1800


class _NoSeriesError(ArithmeticError):
    """A formula has no power series around 0 with rational coefficients that is known here."""


def quotients_by_series(pieces: Pieces) -> Pieces | tuple[Piece, ...]:
    """The pieces, with a power series around 0 where a quotient has a limit and no value.

    Edge      the same object where there is no such quotient. A piece stays as it is where its ends
              are formulas in parameters, or its formula near 0 is, or has a pole.
    Checked   tests/unit/activations/test_removable.py
    """
    parts = [part for piece in pieces for part in _split(piece)]
    return pieces if len(parts) == len(pieces) and parts == list(pieces) else tuple(parts)


def _split(piece: Piece) -> list[Piece]:
    if "/" not in piece.formula:
        return [piece]
    ends, tree = parse_interval(piece.where), parse(piece.formula)
    try:
        low = -math.inf if ends.low is None else evaluate(parse(ends.low), {})
        high = math.inf if ends.high is None else evaluate(parse(ends.high), {})
    except (ArithmeticError, ValueError, KeyError):
        return [piece]
    if not low <= 0 <= high or not any(_vanishes(part) for part, _ in divisors(tree)):
        return [piece]
    series = _written(tree)
    if series is None:
        return [piece]
    left, right, inner = [], [], ends
    if low < -_WIDTH:
        outer = replace(ends, high=f"-{_WIDTH}", high_closed=False)
        left = [replace(piece, where=interval_text(outer))]
        inner = replace(inner, low=f"-{_WIDTH}", low_closed=True)
    if high > _WIDTH:
        outer = replace(ends, low=f"{_WIDTH}", low_closed=False)
        right = [replace(piece, where=interval_text(outer))]
        inner = replace(inner, high=f"{_WIDTH}", high_closed=True)
    near = replace(piece, where=interval_text(inner), formula=series, integral="")
    return [*left, near, *right]


def _vanishes(divisor: ast.expr) -> bool:
    """Whether a divisor in x alone is 0 at x = 0."""
    try:
        return evaluate(divisor, {VARIABLE: 0.0}) == 0
    except (ArithmeticError, ValueError, KeyError):
        return False


def _written(tree: ast.expr) -> str | None:
    """The power series of a formula, as a formula; None where it has none that is short."""
    try:
        series = interpret(tree, _leaf, _call, divide=_over, power=_power)
    except _NoSeriesError:
        return None
    sizes = [abs(c) * _WIDTH**k for k, c in enumerate(series)]
    lead = next((size for size in sizes if size), None)
    if lead is None or sizes[-1] > _ALLOWED * lead:
        return None
    count = len(sizes)
    while sum(sizes[count - 1 :]) <= _ALLOWED * lead:
        count -= 1
    text, missing = "", 0
    for k in reversed(range(count)):  # Horner's scheme
        if series[k]:
            power = f"x**{missing}" if missing > 1 else "x"
            text = f"{series[k]} + {power}*({text})" if text else f"{series[k]}"
            missing = 0
        missing += 1
    if missing > 1:
        text = f"{f'x**{missing - 1}' if missing > 2 else 'x'}*({text})"
    short = count <= _HIGHEST and len(text) <= _MOST_CHARACTERS
    return text.replace("+ -", "- ") if short else None


def _leaf(node: ast.Constant | ast.Name) -> Series:
    if isinstance(node, ast.Constant):
        return _constant(Fraction(str(node.value)))
    if node.id != VARIABLE or node.id in CONSTANTS:
        raise _NoSeriesError
    return _Series([Fraction(0), Fraction(1), *[Fraction(0)] * (_TERMS - 2)])


def _constant(value: Fraction | int) -> _Series:
    return _Series([Fraction(value), *[Fraction(0)] * (_TERMS - 1)])


class _Series(list[Fraction]):
    """A truncated power series in x; of two, the result has the terms that both have."""

    def __add__(self, other: Series) -> _Series:  # type: ignore[override]
        return _Series([a + b for a, b in zip(self, other, strict=False)])

    def __sub__(self, other: Series) -> _Series:
        return _Series([a - b for a, b in zip(self, other, strict=False)])

    def __neg__(self) -> _Series:
        return _Series([-a for a in self])

    def __mul__(self, other: Series) -> _Series:  # type: ignore[override]
        count = min(len(self), len(other))
        return _Series(
            [sum((self[i] * other[k - i] for i in range(k + 1)), Fraction(0)) for k in range(count)]
        )


def _over(above: Series, below: Series) -> _Series:
    order = next((k for k, c in enumerate(below) if c), None)
    if order is None or any(above[:order]):
        raise _NoSeriesError
    above, below = above[order:], below[order:]
    quotient: list[Fraction] = []
    for k in range(min(len(above), len(below))):
        rest = above[k] - sum((quotient[i] * below[k - i] for i in range(k)), Fraction(0))
        quotient.append(rest / below[0])
    return _Series(quotient)


def _power(base: _Series, exponent: Series) -> _Series:
    power = exponent[0]
    if any(exponent[1:]) or power.denominator != 1 or abs(power) > _HIGHEST:
        raise _NoSeriesError
    product = _constant(1)
    for _ in range(abs(int(power))):
        product = product * base
    return product if power >= 0 else _over(_constant(1), product)


def _integral(rate: Series) -> _Series:
    return _Series([Fraction(0), *(c / (k + 1) for k, c in enumerate(rate[:-1]))])


def _slope(series: Series) -> _Series:
    return _Series([*(k * c for k, c in enumerate(series) if k), Fraction(0)])


def _exp(u: _Series) -> _Series:
    terms = [Fraction(1)]
    for k in range(1, len(u)):
        terms.append(sum((i * u[i] * terms[k - i] for i in range(1, k + 1)), Fraction(0)) / k)
    return _Series(terms)


def _circular(u: _Series) -> tuple[_Series, _Series]:
    """sin(u) and cos(u)."""
    sin, cos = [Fraction(0)], [Fraction(1)]
    for k in range(1, len(u)):
        rises = sum((i * u[i] * cos[k - i] for i in range(1, k + 1)), Fraction(0)) / k
        falls = sum((i * u[i] * sin[k - i] for i in range(1, k + 1)), Fraction(0)) / k
        sin.append(rises)
        cos.append(-falls)
    return _Series(sin), _Series(cos)


def _log1p(u: _Series) -> _Series:
    return _integral(_over(_slope(u), _constant(1) + u))


_HALF = Fraction(1, 2)
# Each at a series without a constant term.
_AT_ZERO: Mapping[str, Callable[[_Series], _Series]] = {
    "exp": _exp,
    "expm1": lambda u: _exp(u) - _constant(1),
    "sin": lambda u: _circular(u)[0],
    "cos": lambda u: _circular(u)[1],
    "sinh": lambda u: _constant(_HALF) * (_exp(u) - _exp(-u)),
    "cosh": lambda u: _constant(_HALF) * (_exp(u) + _exp(-u)),
    "tanh": lambda u: _over(_exp(u) - _exp(-u), _exp(u) + _exp(-u)),
    "logistic": lambda u: _over(_constant(1), _constant(1) + _exp(-u)),
    "log1p": _log1p,
    "atan": lambda u: _integral(_over(_slope(u), _constant(1) + u * u)),
}


def _call(name: str, argument: _Series) -> _Series:
    if name == "log" and argument[0] == 1:
        return _log1p(argument - _constant(1))
    if name not in _AT_ZERO or argument[0] != 0:
        raise _NoSeriesError
    return _AT_ZERO[name](argument)
