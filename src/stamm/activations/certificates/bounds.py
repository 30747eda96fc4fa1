"""Certified bounds of f and f' over the whole line, by branch and bound and proved tails."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import sympy
from sympy import Expr

from stamm.activations.certificates.curve import Cell, CertifiedCurve
from stamm.activations.certificates.intervals import (
    Box,
    NotEnclosed,
    added,
    constant,
    hull,
    multiplied,
    negated,
)
from stamm.activations.certificates.rounding import (
    above,
    below,
    joined,
    nearest,
    power,
    shown,
    shown_above,
    shown_below,
    times,
)
from stamm.activations.certificates.tails import Coefficient, Monomial, Tail

TOLERANCE = 1e-8  # of the largest value met, when both bounds are finite
BUDGET = 2000  # boxes
_NAMES = ("f", "f'")


@dataclass
class _Search:
    """The best values met so far, and a range of all values.

    exact   the ends of that range as exact numbers, where a limit or a knot gave them
    """

    attained: Box = (math.inf, -math.inf)
    certified: Box = (math.inf, -math.inf)
    exact: tuple[Expr | None, Expr | None] = (None, None)
    boxes: int = 0

    def include(self, box: Box) -> None:
        """Take in the range of the value at one point."""
        self.attained = min(self.attained[0], box[1]), max(self.attained[1], box[0])

    def require(self, part: Box | Expr) -> None:
        """Take in the final range of a part, or one exact value."""
        number = None if isinstance(part, tuple) else part
        low, high = part if isinstance(part, tuple) else constant(part)
        least, most = self.exact
        if low < self.certified[0] or (low == self.certified[0] and number != least):
            least = number if low < self.certified[0] else None
        if high > self.certified[1] or (high == self.certified[1] and number != most):
            most = number if high > self.certified[1] else None
        self.certified = hull(self.certified, (low, high))
        self.exact = least, most

    def ends(self) -> tuple[float | None, float | None]:
        """The certified bounds to twelve digits, exact decimals where the ends are exact."""
        least, most = self.exact
        low = below(self.certified[0] if least is None else decimal(least))
        high = above(self.certified[1] if most is None else decimal(most))
        return low, high

    def slack(self) -> float:
        """The amount by which a range may exceed the values found."""
        sizes = [abs(end) for end in self.attained if math.isfinite(end)]
        return TOLERANCE * max([*sizes, 1e-9])


def bounds_of(curve: CertifiedCurve, order: int) -> dict[str, Any]:
    """The infimum and supremum of f (order 0) or f' (order 1) on the whole line.

    low, high        proved bounds, rounded outward; None: not bounded on that side
    attained         the smallest and largest value that was met: the true bounds lie between
    status           "proved", or "not proved" when a tail or a part has no enclosure
    Checked          tests/unit/activations/test_certificate_bounds.py
    """
    name = _NAMES[order]
    search = _Search()
    try:
        for side in (-1, 1):
            search.include(curve.at(order, side * curve.reach))
            for part in curve.far_parts(order, side):
                search.require(part)
            search.include(curve.limit(order, side))
        _explore(curve, order, search)
    except NotEnclosed as reason:
        return _not_proved(name, str(reason))
    low, high = search.ends()
    least, most = nearest(search.attained[0]), nearest(search.attained[1])
    return {
        "claim": _claim(name, low, high),
        "status": "proved",
        "low": low,
        "high": high,
        "attained": [None if low is None else least, None if high is None else most],
        "method": "interval branch and bound, tails by expansion",
        "boxes": search.boxes,
        "beyond": curve.reach,
        "tolerance": TOLERANCE,
    }


def _claim(name: str, low: float | None, high: float | None) -> str:
    left, right = shown_below(low), shown_above(high)
    if low is None and high is None:
        return f"{name} is bounded on neither side"
    if low is None:
        return f"{name} <= {right} for all x, without a lower bound"
    if high is None:
        return f"{name} >= {left} for all x, without an upper bound"
    return f"{left} <= {name} <= {right} for all x"


def _not_proved(name: str, reason: str) -> dict[str, Any]:
    return {"claim": f"bounds of {name}", "status": "not proved", "reason": reason}


def _explore(curve: CertifiedCurve, order: int, search: _Search) -> None:
    queue: list[tuple[float, int, float, float, Cell, Box]] = []
    for cell in curve.cells:
        low, high = max(cell.low, -curve.reach), min(cell.high, curve.reach)
        for x in (low, high):
            search.include(cell.box(order, x, x))
        _enqueue(queue, search, order, cell, low, high)
    while queue:
        _, _, low, high, cell, box = heapq.heappop(queue)
        slack = search.slack()
        inside = box[0] >= search.attained[0] - slack and box[1] <= search.attained[1] + slack
        if inside or search.boxes > BUDGET or high - low < 1e-13 * max(1.0, abs(low)):
            search.require(box)
            continue
        middle = low + 0.4871 * (high - low)
        search.include(cell.box(order, middle, middle))
        _enqueue(queue, search, order, cell, low, middle)
        _enqueue(queue, search, order, cell, middle, high)


def _enqueue(queue: Any, search: _Search, order: int, cell: Cell, low: float, high: float) -> None:
    """Enclose a box; when it is monotone its ends say all, else it waits to be divided."""
    search.boxes += 1
    slope = cell.box(order + 1, low, high)
    if slope[0] >= 0.0 or slope[1] <= 0.0:
        for end, x in ((-1, low), (1, high)):
            search.require(_end(cell, order, end, x))
        return
    box = cell.box(order, low, high)
    middle = low + (high - low) / 2
    step = added((low, high), negated((middle, middle)))
    around = added(cell.box(order, middle, middle), multiplied(slope, step))
    box = max(box[0], around[0]), min(box[1], around[1])
    worst = max(box[1] - search.attained[1], search.attained[0] - box[0])
    heapq.heappush(queue, (-worst, search.boxes, low, high, cell, box))


def _end(cell: Cell, order: int, end: int, x: float) -> Box | Expr:
    """The value at one end of a box: exact where that is an end of the cell."""
    if x == (cell.low if end < 0 else cell.high):
        value = cell.value(order, end)
        if value.is_finite and value.is_real:
            return value
    return cell.box(order, x, x)


def decimal(value: Expr) -> Decimal:
    """An exact number as a decimal of 40 digits."""
    if value.is_Rational:
        with localcontext(prec=40):
            return Decimal(int(value.p)) / Decimal(int(value.q))
    return Decimal(str(sympy.N(value, 40)))


def lipschitz(slope: dict[str, Any], jumps: bool) -> dict[str, Any]:
    """The Lipschitz constant of f from the bounds of f'."""
    if slope["status"] != "proved":
        return {"claim": "Lipschitz constant", "status": "not proved", "reason": slope["reason"]}
    low, high = slope["low"], slope["high"]
    if jumps or low is None or high is None:
        why = "f jumps" if jumps else "f' is not bounded"
        return {"claim": f"not Lipschitz: {why}", "status": "proved", "constant": None}
    constant = max(abs(low), abs(high))
    return {
        "claim": f"|f(a) - f(b)| <= {shown_above(constant)} |a - b| for all a and b",
        "status": "proved",
        "constant": constant,
    }


def growth(curve: CertifiedCurve, side: int) -> dict[str, Any]:
    """Growth of f on one side: f ~ coefficient |x|**degree, or faster than every power.

    logs   the power of log|x| beside |x|**degree, for the kind "power and logarithm" alone
    """
    tail = curve.tail(0, side)
    where = "left" if side < 0 else "right"
    if tail is None:
        tail = _integrated(curve.tail(1, side), side)
    if tail is None:
        return {"claim": f"growth on the {where}", "status": "not proved", "reason": "no expansion"}
    kind, degree, coefficient, logs = _leading(tail)
    if kind == "unknown":
        reason = "its leading term may vanish"
        return {"claim": f"growth on the {where}", "status": "not proved", "reason": reason}
    leading = joined(power("|x|", degree), power("log|x|" if logs == 1.0 else "(log|x|)", logs))
    text = {
        "zero": f"f is 0 far to the {where}",
        "vanishing": f"f vanishes far to the {where}",
        "power": f"f grows like {times(coefficient, power('|x|', degree))} far to the {where}",
        "limit": f"f approaches {shown(coefficient)} far to the {where}",
        "power and logarithm": f"f grows like {leading} far to the {where}",
        "exponential": f"|f| exceeds every power far to the {where}",
        "at most": f"|f| is at most of the order of {power('|x|', degree)} far to the {where}",
        "bounded": f"f is bounded far to the {where}, without a limit",
    }[kind]
    made = {
        "claim": text,
        "status": "proved",
        "kind": kind,
        "degree": degree,
        "coefficient": coefficient,
    }
    return made if logs is None else {**made, "logs": logs}


def _integrated(slope: Tail | None, side: int) -> Tail | None:
    """The leading term of f from that of f', where that is a power that makes f grow."""
    if slope is None or not slope.terms:
        return None
    monomial, coefficient = slope.ordered[0]
    grows = monomial == Monomial(power=monomial.power) and monomial.power > -1
    if coefficient.exact is None or not grows:
        return None
    degree = monomial.power + 1
    lead = coefficient.exact * side / degree
    return Tail(slope.start, {Monomial(power=degree): Coefficient(constant(lead), lead)})


def _leading(tail: Tail) -> tuple[str, float | None, float | None, float | None]:
    """The kind of the leading term, its degree and coefficient, and the power of its logarithm."""
    if not tail.terms:
        return "zero", None, None, None
    monomial, coefficient = tail.ordered[0]
    if monomial.trend < 0:
        return "vanishing", None, None, None
    if monomial != Monomial(power=monomial.power, logs=monomial.logs):
        definite = coefficient.box[0] > 0.0 or coefficient.box[1] < 0.0
        return "exponential" if definite else "unknown", None, None, None
    degree = nearest(float(monomial.power))
    if monomial.logs != 0 and coefficient.exact is None:
        return "unknown", None, None, None
    if monomial.logs != 0:
        return "power and logarithm", degree, None, nearest(float(monomial.logs))
    if coefficient.exact is None:
        return "bounded" if monomial.trend == 0 else "at most", degree, None, None
    kind = "limit" if monomial.trend == 0 else "power"
    return kind, degree, nearest(float(coefficient.exact)), None
