"""Certified bounds of f and f' over the whole line, by branch and bound and proved tails; growth, asymptotes, overflow."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import mpmath
import sympy
from sympy import Expr, Integer

from stamm.activations.certificates.curve import Cell, CertifiedCurve
from stamm.activations.certificates.intervals import (
    LINE,
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
    not_proved,
    power,
    shown,
    shown_above,
    shown_below,
    times,
)
from stamm.activations.certificates.tails import CONSTANT, Coefficient, Monomial, Tail
from stamm.activations.derivation.formulas import number
from stamm.activations.derivation.primitives import X

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
        return not_proved(f"bounds of {name}", str(reason))
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
    """Enclose a box: a monotone one by its ends; any other is queued to be divided."""
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
        return not_proved("Lipschitz constant", slope["reason"])
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
        return not_proved(f"growth on the {where}", "no expansion")
    kind, degree, coefficient, logs = _leading(tail)
    if kind == "unknown":
        reason = "its leading term may vanish"
        return not_proved(f"growth on the {where}", reason)
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


_LINE = Monomial(power=Integer(1))
_FAR = 2.0**20  # where a limit is measured that could not be proved
_SIDES = {-1: "left", 1: "right"}


def asymptote(curve: CertifiedCurve, side: int) -> dict[str, Any]:
    """The line slope x + intercept that f approaches on one side, if there is one.

    slope, intercept   numbers, with the exact expression beside them
    rate               how the remainder decays: "exact" (there is none), "gaussian", "exponential",
                       "doubly exponential" or "power", with its parameters
    status             "proved" by expansion; "measured" where there is none
    Checked            tests/unit/activations/test_certificate_shape.py
    """
    tail = curve.tail(0, side)
    if tail is None:
        return _measured(curve, side)
    where = f"far to the {_SIDES[side]}"
    growing = [m for m in tail.terms if m.trend > 0 and m != _LINE]
    line, constant = tail.terms.get(_LINE), tail.terms.get(CONSTANT)
    slope, intercept = _exact(line), _exact(constant)
    if growing or slope is None or intercept is None:
        return {"claim": f"f approaches no line {where}", "status": "proved", "slope": None}
    slope = side * slope
    rate = _rate(tail)
    return {
        "claim": f"f(x) approaches {_text(slope, intercept)} {where}, {rate['claim']}",
        "status": "proved",
        "slope": nearest(float(slope)),
        "intercept": nearest(float(intercept)),
        "exact": [str(slope), str(intercept)],
        "rate": rate,
    }


def _exact(coefficient: Coefficient | None) -> Expr | None:
    """The coefficient as an exact number, 0 for an absent term; None when only a range is known."""
    return Integer(0) if coefficient is None else coefficient.exact


def _text(slope: Expr, intercept: Expr) -> str:
    a, b = float(slope), float(intercept)
    if a == 0.0:
        return shown(b)
    line = times(a, "x")
    return line if b == 0.0 else f"{line} {'+' if b > 0 else '-'} {shown(abs(b))}"


def _rate(tail: Tail) -> dict[str, Any]:
    """Rate at which f approaches its asymptote: the class of the largest vanishing term."""
    rest = [m for m, _ in tail.ordered if m.trend < 0]
    if not rest:
        return {"kind": "exact", "claim": "exactly"}
    m = rest[0]
    degree = nearest(float(m.power))
    front = power("|x|", degree) + " " if degree else ""
    if m.towers:
        rate = nearest(float(m.towers[0][0]))
        weight = nearest(float(m.towers[0][1]))
        tower = f"exp({times(rate, '|x|')})"
        claim = f"like exp(-{times(weight, tower)})"
        return {"kind": "doubly exponential", "claim": claim, "rate": rate, "weight": weight}
    if m.square != 0:
        rate = nearest(float(m.square))
        claim = f"like {front}exp(-{times(rate, 'x^2')})"
        return {"kind": "gaussian", "claim": claim, "rate": rate, "power": degree}
    if m.linear != 0:
        rate = nearest(float(m.linear))
        claim = f"like {front}exp(-{times(rate, '|x|')})"
        return {"kind": "exponential", "claim": claim, "rate": rate, "power": degree}
    logs = " and a logarithm" if m.logs != 0 else ""
    return {"kind": "power", "claim": f"like {power('|x|', degree)}{logs}", "power": degree}


def _measured(curve: CertifiedCurve, side: int) -> dict[str, Any]:
    """Slope and intercept from two far points, where no expansion is known."""
    formula = curve.cells[-1 if side > 0 else 0].formulas[0]
    with mpmath.workdps(60):
        near, far = (
            number(formula, {X.name: side * mpmath.mpf(reach)}) for reach in (_FAR, 2 * _FAR)
        )
        slope = (far - near) / (side * _FAR)
        intercept = far - slope * side * 2 * _FAR
        if not mpmath.isfinite(slope) or abs(intercept) > 1e-3 * abs(far) + 1e3:
            return {
                "claim": f"asymptote on the {_SIDES[side]}",
                "status": "not proved",
                "reason": "no expansion, and two far points show no line",
            }
        return {
            "claim": f"f lies near {times(float(slope), 'x')} + {shown(float(intercept))}"
            f" at |x| = {_FAR:g} and {2 * _FAR:g}",
            "status": "measured",
            "slope": nearest(float(slope)),
            "intercept": nearest(float(intercept)),
            "points": [side * _FAR, side * 2 * _FAR],
        }


# By format: its largest finite number, and the least real number that rounds beyond it.
FORMATS: Mapping[str, tuple[float, float]] = {
    "fp8_e4m3": (448.0, 464.0),
    "fp8_e5m2": (57344.0, 61440.0),
    "fp16": (65504.0, 65520.0),
    "bf16": (2.0**128 - 2.0**120, 2.0**128 - 2.0**119),
    "fp32": (2.0**128 - 2.0**104, 2.0**128 - 2.0**103),
}
_STEPS = 200


def overflow_of(curve: CertifiedCurve, order: int) -> dict[str, Any]:
    """For each format, the largest |x| on each side up to which f or f' stays finite in it.

    left, right   None when no input of the format overflows
    status        "proved" where the value is monotone from there on and smaller before;
                  "measured" where only the bisection shows it
    """
    rows: dict[str, dict[str, float | None]] = {}
    proved = True
    for name, (largest, limit) in FORMATS.items():
        row: dict[str, float | None] = {}
        for side, label in ((-1, "left"), (1, "right")):
            reach, sure = _reach(curve, order, side, largest, limit)
            row[label] = None if reach is None else below(reach)
            proved = proved and sure
        rows[name] = row
    described = [
        f"{name} for x {sign}{shown(reach, 5)}"
        for name, row in rows.items()
        for label, sign in (("left", "< -"), ("right", "> "))
        if (reach := row[label]) is not None
    ]
    what = _NAMES[order]
    claim = (
        f"{what} overflows {', '.join(described)}"
        if described
        else f"{what} overflows in no format"
    )
    return {"claim": claim, "status": "proved" if proved else "measured", "finite_up_to": rows}


def _reach(
    curve: CertifiedCurve, order: int, side: int, largest: float, limit: float
) -> tuple[float | None, bool]:
    """(the largest |x| with a finite value, whether that is proved); None when all are finite."""
    sure = curve.tail_sign(order + 1, side) is not None and _core(curve, order) < limit
    try:
        far = curve.far_range(order, side)
    except NotEnclosed:
        far = LINE
    if max(abs(far[0]), abs(far[1])) < limit:
        return None, _core(curve, order) < limit
    if _finite(curve, order, side * largest, limit):
        return None, sure
    low, high = 0.0, largest
    for _ in range(_STEPS):
        middle = math.sqrt(low * high) if low > 1.0 and high > 4.0 * low else 0.5 * (low + high)
        if high - low <= 1e-13 * high or middle in (low, high):
            break
        if _finite(curve, order, side * middle, limit):
            low = middle
        else:
            high = middle
    return low, sure and low >= curve.reach


def _finite(curve: CertifiedCurve, order: int, x: float, limit: float) -> bool:
    try:
        box = curve.at(order, x)
    except NotEnclosed:
        return False
    return max(abs(box[0]), abs(box[1])) < limit


def _core(curve: CertifiedCurve, order: int) -> float:
    """A bound on the absolute value within `reach` of 0."""
    try:
        boxes = [
            cell.box(order, max(cell.low, -curve.reach), min(cell.high, curve.reach))
            for cell in curve.cells
        ]
    except NotEnclosed:
        return math.inf
    low, high = hull(*boxes)
    return max(abs(low), abs(high))
