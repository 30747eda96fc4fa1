"""Numbers as a certificate writes them: twelve significant digits, bounds rounded outward."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

DIGITS = 12
_NEAREST = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN)
_DOWN = Context(prec=DIGITS, rounding=ROUND_FLOOR)
_UP = Context(prec=DIGITS, rounding=ROUND_CEILING)
_FINE_DOWN = Context(prec=14, rounding=ROUND_FLOOR)
_FINE_UP = Context(prec=14, rounding=ROUND_CEILING)
_SHORT_DOWN = Context(prec=6, rounding=ROUND_FLOOR)
_SHORT_UP = Context(prec=6, rounding=ROUND_CEILING)


def nearest(value: float) -> float | None:
    """The value to twelve digits; None where it is not finite, as JSON has no infinity."""
    return _rounded(value, _NEAREST)


def measured(value: float) -> float:
    """A measured value to ten digits, 0 where only rounding is left.

    Two digits fewer than a proved value: the last bits of a sum depend on the machine's exp.
    """
    return 0.0 if abs(value) < 1e-13 else float(f"{value:.9e}")


def below(value: float | Decimal) -> float | None:
    """The largest number of twelve digits that is not above the value; None for an infinity."""
    return _rounded(value, _DOWN)


def above(value: float | Decimal) -> float | None:
    """The least number of twelve digits that is not below the value; None for an infinity."""
    return _rounded(value, _UP)


def bracket(low: float, high: float) -> dict[str, float | None]:
    """A bracket, rounded outward to fourteen digits so that it stays as narrow as it was proved."""
    return {"low": _rounded(low, _FINE_DOWN), "high": _rounded(high, _FINE_UP)}


def shown(value: float | None, digits: int = 6, otherwise: str = "infinity") -> str:
    """The value as a claim writes it."""
    return otherwise if value is None else f"{value:.{digits}g}"


def shown_below(value: float | None) -> str:
    """A lower bound as a claim writes it: six digits, rounded down so that it stays true."""
    return (
        "-infinity"
        if value is None
        else f"{float(_SHORT_DOWN.create_decimal(Decimal(repr(value)))) + 0.0:.6g}"
    )


def shown_above(value: float | None) -> str:
    """An upper bound as a claim writes it: six digits, rounded up so that it stays true."""
    return (
        "infinity"
        if value is None
        else f"{float(_SHORT_UP.create_decimal(Decimal(repr(value)))) + 0.0:.6g}"
    )


def times(factor: float | None, what: str) -> str:
    """ "2.5 x" for 2.5 and x; "x" for 1, "-x" for -1."""
    if factor in (1.0, -1.0):
        return what if factor == 1.0 else f"-{what}"
    return f"{shown(factor)} {what}"


def power(what: str, degree: float | None) -> str:
    """ "x^2" for x and 2; "x" for 1, nothing for 0."""
    if degree in (0.0, 1.0):
        return what if degree == 1.0 else ""
    return f"{what}^{shown(degree)}"


def joined(*parts: str) -> str:
    """The parts that are not empty, with one space between them."""
    return " ".join(part for part in parts if part)


def _rounded(value: float | Decimal, context: Context) -> float | None:
    if not math.isfinite(value):
        return None
    return float(context.create_decimal(Decimal(value))) + 0.0  # -0.0 is written as 0.0
