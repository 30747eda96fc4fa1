"""Shape of the graph: signs, zeros, monotone and convex parts, jumps, smoothness, invertibility."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sympy import Expr

from stamm.activations.certificates.curve import Cell, CertifiedCurve, resolved, value_at, vanishes
from stamm.activations.certificates.intervals import LINE, Box, NotEnclosed
from stamm.activations.certificates.rounding import bracket, nearest, not_proved, shown
from stamm.activations.certificates.symmetry import is_analytic

_NAMES = ("f", "f'", "f''")
SMOOTHEST = 3  # derivatives beyond this order are not compared
_DIRECTIONS = {1: "increasing", -1: "decreasing", 0: "constant", None: "not known"}
_CURVATURES = {1: "convex", -1: "concave", 0: "linear", None: "not known"}


def zeros_of(signs: SignMap, name: str) -> dict[str, Any]:
    """Every zero of f or f', as brackets rounded outward.

    status    "proved" when there are no others and each bracket holds exactly one zero
    at        [{low, high, unique, exact}]; flat: where the function is identically zero
    """
    points = [{**bracket(z.low, z.high), "unique": z.unique, "exact": z.exact} for z in signs.zeros]
    flat = [_ends(s) for s in signs.stretches if s.sign == 0]
    proved = signs.complete
    described = [f"at {shown((z.low + z.high) / 2 + 0.0)}" for z in signs.zeros]
    described += [f"on {_interval(s)}" for s in signs.stretches if s.sign == 0]
    claim = f"{name} has no zero" if proved else f"zeros of {name}"
    if described:
        claim = f"{name} is 0 {', '.join(described)}" + (" and nowhere else" if proved else "")
    return {
        "claim": claim,
        "status": "proved" if proved else "not proved",
        "at": points,
        "flat": flat,
        "boxes": signs.boxes,
    }


def between_jumps(slope_signs: SignMap, jumps: Mapping[float, float]) -> SignMap:
    """The signs of f' with stretches cut at jumps of f that do not continue them.

    jumps   by how much f jumps, by knot: an increasing f stays so at a jump upwards
    """
    parts: list[SignInterval] = []
    for whole in slope_signs.stretches:
        # A knot that no double equals lies beside the end of the stretch, not inside.
        inner = math.nextafter(whole.low, math.inf), math.nextafter(whole.high, -math.inf)
        breaks = [at for at, by in jumps.items() if not by * (whole.sign or 0) > 0]
        parts += _cut(whole, [at for at in breaks if inner[0] < at < inner[1]])
    return replace(slope_signs, stretches=tuple(parts))


def runs_of(slope_signs: SignMap) -> dict[str, Any]:
    """Where f rises and falls, from the signs of f' between jumps of f."""
    parts = [{**_ends(s), "runs": _DIRECTIONS[s.sign]} for s in slope_signs.stretches]
    described = [f"{_DIRECTIONS[s.sign]} on {_interval(s)}" for s in slope_signs.stretches]
    return {
        "claim": "f is " + ", ".join(described),
        "status": "proved" if slope_signs.settled else "not proved",
        "parts": parts,
    }


def bends_of(
    curvature_signs: SignMap, slope_jumps: Mapping[float, float], broken: Sequence[float]
) -> dict[str, Any]:
    """Where f is convex and concave, from the signs of f'' and the jumps of f'.

    slope_jumps   by how much f' jumps, by knot
    broken        knots where f itself jumps: nothing is convex across them
    """
    parts = list(_bends(curvature_signs.stretches, slope_jumps, broken))
    described = [f"{_CURVATURES[s.sign]} on {_interval(s)}" for s in parts]
    return {
        "claim": "f is " + ", ".join(described),
        "status": "proved" if curvature_signs.settled else "not proved",
        "parts": [{**_ends(s), "bends": _CURVATURES[s.sign]} for s in parts],
    }


def _bends(
    stretches: Sequence[SignInterval], jumps: Mapping[float, float], broken: Sequence[float]
) -> Iterator[SignInterval]:
    """Stretches cut at jumps that bend the other way, joined at jumps that bend the same way."""
    pending: SignInterval | None = None
    for whole in stretches:
        for part in _cut(whole, [*jumps, *broken]):
            if pending is None:
                pending = part
                continue
            joined = None
            if pending.high not in broken:
                joined = _joined_sign(pending.sign, part.sign, jumps.get(pending.high, 0.0))
            if joined is None:
                yield pending
                pending = part
            else:
                pending = SignInterval(pending.low, part.high, joined)
    if pending is not None:
        yield pending


def _cut(stretch: SignInterval, points: Sequence[float]) -> Iterator[SignInterval]:
    low = stretch.low
    for point in sorted({p for p in points if stretch.low < p < stretch.high}):
        yield replace(stretch, low=low, high=point)
        low = point
    yield replace(stretch, low=low)


def _joined_sign(left: int | None, right: int | None, jump: float) -> int | None:
    """The sign of the curvature over two parts and the jump between them; None when it changes."""
    if left is None or right is None:
        return None
    if jump == 0.0:
        return left or right if left == right or 0 in (left, right) else None
    bend = 1 if jump > 0 else -1
    return bend if left in (0, bend) and right in (0, bend) else None


def jumps_of(curve: CertifiedCurve) -> tuple[dict[str, Any], dict[int, dict[float, float]]]:
    """Jumps of f, f' and f'' at the knots, and by order and knot as numbers.

    Values are right limit minus left limit, exact expressions beside their numbers.
    """
    jumps: list[dict[str, Any]] = []
    undecided: list[str] = []
    by_order: dict[int, dict[float, float]] = {0: {}, 1: {}, 2: {}}
    for position, knot in enumerate(curve.knots):
        for order in (0, 1, 2):
            height = jump_at(curve, position, order)
            if vanishes(height):
                continue
            size = resolved(height)
            if size is None:
                undecided.append(f"{_NAMES[order]} at {shown(float(knot))}")
                continue
            by_order[order][float(knot)] = size
            jumps.append(
                {
                    "of": _NAMES[order],
                    "at": nearest(float(knot)),
                    "by": nearest(size),
                    "exact": str(height),
                }
            )
    described = [f"{j['of']} jumps by {_size(j['by'])} at {shown(j['at'])}" for j in jumps]
    made = {
        "claim": "; ".join(described) if described else "f, f' and f'' have no jump",
        "status": "not proved" if curve.folded or undecided else "proved",
        "at": jumps,
    }
    if undecided:
        made["reason"] = f"thousands of digits do not tell a jump from 0: {', '.join(undecided)}"
    return made, by_order


def _size(by: float | None) -> str:
    return "less than any double" if by == 0.0 else shown(by)


def jump_at(curve: CertifiedCurve, position: int, order: int) -> Expr:
    """The right limit minus the left limit of a derivative of any order at a knot."""
    knot = curve.knots[position]
    left_limit = value_at(curve.derivative(position, order), knot, -1)
    return value_at(curve.derivative(position + 1, order), knot, 1) - left_limit


def smoothness_of(curve: CertifiedCurve) -> dict[str, Any]:
    """The order of the last derivative that is continuous everywhere; -1 when f jumps."""
    if curve.folded or not all(map(is_analytic, curve.smooth_parts())):
        reason = "a piece holds |u|, sign(u) or a power that need not be smooth"
        return not_proved("smoothness", reason)
    if not curve.knots:
        return {"claim": "f is C^infinity", "status": "proved", "order": None}
    for order in range(SMOOTHEST + 1):
        heights = [jump_at(curve, i, order) for i in range(len(curve.knots))]
        jumps = [height for height in heights if not vanishes(height)]
        if jumps and all(resolved(height) is None for height in jumps):
            reason = f"thousands of digits do not tell a jump of the derivative {order} from 0"
            return not_proved("smoothness", reason)
        if jumps:
            last = order - 1
            claim = f"f is C^{last}, not C^{order}" if last >= 0 else "f is not continuous"
            return {"claim": claim, "status": "proved", "order": last}
    claim = f"f is at least C^{SMOOTHEST}"
    return {"claim": claim, "status": "proved", "order": SMOOTHEST}


def inverse_of(slope: SignMap, jumps: bool) -> dict[str, Any]:
    """Whether x can be recovered from f(x): always, with one more bit, or not.

    kind    "monotone", "one bit" (split: a bracket of the turning point) or "none"
    """
    signs = [s.sign for s in slope.stretches]
    if 0 in signs:
        flat = next(s for s in slope.stretches if s.sign == 0)
        claim = f"f is not invertible: it is constant on {_interval(flat)}"
        return {"claim": claim, "status": "proved", "kind": "none"}
    if not slope.complete or jumps:
        reason = "f jumps" if jumps else "the signs of f' are not settled"
        return not_proved("invertibility", reason)
    if len(signs) == 1:
        return {"claim": "f is invertible", "status": "proved", "kind": "monotone"}
    if len(signs) == 2:
        at = slope.stretches[0].high, slope.stretches[1].low
        return {
            "claim": f"f is invertible with one more bit: on which side of {shown(at[0])} x lies",
            "status": "proved",
            "kind": "one bit",
            "split": bracket(min(at), max(at)),
        }
    claim = f"f is not invertible: it turns {len(signs) - 1} times"
    return {"claim": claim, "status": "proved", "kind": "none"}


def hot_spots(function: SignMap, slope: SignMap) -> dict[str, Any]:
    """Zeros away from 0, near which rounding x spoils every digit of f or f'.

    The relative condition number |x f'/f| (or |x f''/f'|) has no bound there; at x = 0 it has.
    """
    spots: list[dict[str, Any]] = [
        {"of": name, "near": nearest((zero.low + zero.high) / 2)}
        for name, signs in (("f", function), ("f'", slope))
        for zero in signs.zeros
        if not zero.low <= 0.0 <= zero.high
    ]
    described = [f"{s['of']} near {shown(s['near'])}" for s in spots]
    claim = "no zero away from 0: relative accuracy is possible everywhere"
    if described:
        claim = "relative error is unbounded for " + ", ".join(described)
    proved = function.complete and slope.complete
    return {"claim": claim, "status": "proved" if proved else "not proved", "at": spots}


def _ends(stretch: SignInterval | Zero) -> dict[str, float | None]:
    return {"low": nearest(stretch.low), "high": nearest(stretch.high)}


def _interval(stretch: SignInterval) -> str:
    low = shown(nearest(stretch.low), otherwise="-infinity")
    high = shown(nearest(stretch.high))
    if math.isinf(stretch.low) and math.isinf(stretch.high):
        return "the whole line"
    return f"({low}, {high})"


BRACKET = 1e-12  # width of a bracket, relative to the zero where that is beyond 1
_BUDGET = 2000  # boxes per derivative
_NARROW = 1e-13
_VANISHED = 1e-290  # below it products underflow: neither a sign nor a zero can be proved
_SHORT = 1e-6  # a box this short is given up when rounding hides the sign at its middle


@dataclass(frozen=True)
class SignInterval:
    """A part of the line on which a derivative keeps one sign.

    low, high   its ends, infinite at the ends of the line
    sign        1, 0 (identically zero), -1; None where nothing could be proved
    strict      whether it is proved to have no zero inside
    """

    low: float
    high: float
    sign: int | None
    strict: bool = True


@dataclass(frozen=True)
class Zero:
    """A zero between low and high; `unique` when it is proved to be the only one there.

    exact   whether low = high is the zero itself, proved symbolically
    """

    low: float
    high: float
    unique: bool
    exact: bool = False


@dataclass(frozen=True)
class SignMap:
    """Stretches from left to right, the zeros between or inside them, and the work done."""

    stretches: tuple[SignInterval, ...]
    zeros: tuple[Zero, ...]
    boxes: int

    @property
    def settled(self) -> bool:
        """Whether every sign is known."""
        return all(s.sign is not None for s in self.stretches)

    @property
    def complete(self) -> bool:
        """Whether the zeros are all there are, each proved to be the only one in its bracket."""
        strict = all(s.strict for s in self.stretches)
        return self.settled and strict and all(zero.unique for zero in self.zeros)


class _Counter:
    def __init__(self) -> None:
        self.boxes = 0


def sign_map(curve: CertifiedCurve, order: int, *, strict: bool) -> SignMap:
    """The signs of f, f' or f'' (order 0, 1, 2) on the whole line.

    strict   whether zeros inside a stretch of one sign are looked for as well
    Edge     the sign at a jump is that of either side; a zero at a knot counts when the
             derivative vanishes there from one side at least.
    Checked  tests/unit/activations/test_certificate_shape.py
    """
    counter = _Counter()
    stretches: list[SignInterval] = []
    zeros: list[Zero] = []
    _add_far(curve, order, -1, stretches)
    for cell in curve.cells:
        low, high = max(cell.low, -curve.reach), min(cell.high, curve.reach)
        if cell.exact_low.is_finite and cell.is_zero_at(order, -1):
            zeros.append(Zero(cell.low, cell.low, unique=True, exact=True))
        for part in _parts(cell, order, low, high, strict, counter):
            if isinstance(part, Zero):
                zeros.append(part)
            else:
                stretches.append(part)
        if cell.exact_high.is_finite and cell.is_zero_at(order, 1):
            zeros.append(Zero(cell.high, cell.high, unique=True, exact=True))
    _add_far(curve, order, 1, stretches)
    merged = _merged(stretches, zeros)
    return SignMap(tuple(merged), tuple(_cleaned(zeros, merged)), counter.boxes)


def _add_far(curve: CertifiedCurve, order: int, side: int, stretches: list[SignInterval]) -> None:
    sign = curve.tail_sign(order, side)
    ends = (-math.inf, -curve.reach) if side < 0 else (curve.reach, math.inf)
    tail = curve.tail(order, side)
    if sign is None and tail is not None:
        low, high = tail.range()
        weak = 1 if low >= 0.0 else -1 if high <= 0.0 else None
        stretches.append(SignInterval(*ends, weak, strict=False))
        return
    stretches.append(SignInterval(*ends, sign))


def _parts(
    cell: Cell, order: int, low: float, high: float, strict: bool, counter: _Counter
) -> Iterator[SignInterval | Zero]:
    """Stretches and zeros of one cell, from left to right."""
    last: SignInterval | None = None
    for side in (-1, 1):
        far = cell.far_sign(order, side)
        if far is None:
            continue
        if side < 0 and low < -far[0] < high:
            yield SignInterval(low, -far[0], far[1])
            low = -far[0]
        elif side > 0 and low < far[0] < high:
            last = SignInterval(far[0], high, far[1])
            high = far[0]
    yield from _divided(cell, order, low, high, strict, counter)
    if last is not None:
        yield last


def _divided(
    cell: Cell, order: int, low: float, high: float, strict: bool, counter: _Counter
) -> Iterator[SignInterval | Zero]:
    """The same by dividing boxes until each has a sign or one zero."""
    stack = [(low, high)]
    while stack:
        a, b = stack.pop()
        counter.boxes += 1
        box = _box(cell, order, a, b)
        sign = _sign(box)
        if sign is not None:
            yield SignInterval(a, b, sign)
            continue
        weak = 1 if box[0] >= 0.0 else -1 if box[1] <= 0.0 else None
        if weak is not None and not strict:
            yield SignInterval(a, b, weak, strict=False)
            continue
        monotone = _monotone(cell, order, a, b)
        blurred = b - a < _SHORT and _sign(_box(cell, order, *[0.5 * (a + b)] * 2)) is None
        if monotone is not None:
            yield from monotone
        elif blurred or counter.boxes > _BUDGET or b - a < _NARROW * max(1.0, abs(a)):
            yield SignInterval(a, b, weak, strict=False)
            vanished = max(abs(box[0]), abs(box[1])) < _VANISHED
            if not vanished and not _touches_known_zero(cell, order, a, b):
                yield Zero(a, b, unique=False)
        else:
            middle = a + 0.4871 * (b - a)
            stack += [(middle, b), (a, middle)]


def _touches_known_zero(cell: Cell, order: int, a: float, b: float) -> bool:
    at_low = a == cell.low and cell.is_zero_at(order, -1)
    return at_low or (b == cell.high and cell.is_zero_at(order, 1))


def _box(cell: Cell, order: int, a: float, b: float) -> Box:
    """The range on a box; the whole line where none is known."""
    try:
        return cell.box(order, a, b)
    except NotEnclosed:
        return LINE


def _sign(box: Box) -> int | None:
    if box[0] > 0.0:
        return 1
    if box[1] < 0.0:
        return -1
    return 0 if box[0] == box[1] == 0.0 else None


def _monotone(cell: Cell, order: int, a: float, b: float) -> list[SignInterval | Zero] | None:
    """The sign intervals of a box where the next derivative keeps its sign; None where it does not."""
    direction = _sign(_box(cell, order + 1, a, b))
    if direction in (None, 0):
        return _double_zero(cell, order, a, b)
    first, last = _end_sign(cell, order, a, -1), _end_sign(cell, order, b, 1)
    if first is None or last is None:
        return None
    if first == last:
        return [SignInterval(a, b, first)] if first != 0 else None
    if first == 0 or last == 0:
        return [SignInterval(a, b, last or first)]
    low, high = _bisected(cell, order, a, b, last)
    return [SignInterval(a, low, first), Zero(low, high, unique=True), SignInterval(high, b, last)]


def _double_zero(cell: Cell, order: int, a: float, b: float) -> list[SignInterval | Zero] | None:
    """A box at a cell's end where g vanishes more than once, and is known to do so only there.

    Either its factors other than x keep their signs, or all derivatives below one that keeps its
    sign vanish there: its sign is that of g right of the zero, and left of it for even orders.
    """
    try:
        sign = cell.open_sign(order, a, b)
    except NotEnclosed:
        sign = None
    if sign is not None:
        return [SignInterval(a, b, sign)]
    for end, touches in ((-1, a == cell.low), (1, b == cell.high)):
        depth = order
        while touches and depth < 3 and cell.is_zero_at(depth, end):
            depth += 1
            sign = _sign(_box(cell, depth, a, b))
            if sign not in (None, 0):
                turned = end > 0 and (depth - order) % 2 == 1
                return [SignInterval(a, b, -sign if turned else sign)]
    return None


def _end_sign(cell: Cell, order: int, x: float, end: int) -> int | None:
    at_cell_end = x == (cell.low if end < 0 else cell.high)
    if at_cell_end and cell.is_zero_at(order, end):
        return 0
    return _sign(_box(cell, order, x, x))


def _bisected(cell: Cell, order: int, a: float, b: float, last: int) -> tuple[float, float]:
    """A bracket of the only zero between a and b; the sign beyond it is `last`."""
    while b - a > BRACKET / 4 * max(1.0, abs(a)):
        for share in (0.5, 0.47, 0.53, 0.4):
            middle = a + share * (b - a)
            sign = _sign(_box(cell, order, middle, middle))
            if sign not in (None, 0):
                break
        else:
            return a, b
        a, b = (a, middle) if sign == last else (middle, b)
    return a, b


def _merged(stretches: list[SignInterval], zeros: list[Zero]) -> list[SignInterval]:
    """Neighbours of one sign joined, and narrow unknown parts inside a zero's bracket dropped."""
    result: list[SignInterval] = []
    for item in stretches:
        if item.low >= item.high:
            continue
        narrow = item.high - item.low <= 1e-9 * max(1.0, abs(item.low))
        near = any(z.low <= item.high and z.high >= item.low for z in zeros)
        if item.sign is None and narrow and near:
            continue
        if result and result[-1].sign == item.sign:
            strict = result[-1].strict and item.strict
            result[-1] = replace(result[-1], high=item.high, strict=strict)
        else:
            result.append(item)
    return result


def _cleaned(zeros: list[Zero], stretches: list[SignInterval]) -> Iterator[Zero]:
    """Each zero once, without those at the ends of an interval where the function is zero."""
    flat = [s for s in stretches if s.sign == 0]
    last: Zero | None = None
    for zero in zeros:
        if any(s.low <= zero.high and zero.low <= s.high for s in flat):
            continue
        if last is not None and zero.low <= last.high:
            wider = Zero(last.low, max(last.high, zero.high), unique=last.unique and zero.unique)
            last = last if zero.exact and last.exact else wider
            continue
        if last is not None:
            yield last
        last = zero
    if last is not None:
        yield last
