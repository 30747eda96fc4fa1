"""Where f, f' or f'' is proved positive or negative, and every zero in between, bracketed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stamm.activations.certificates.curve import Cell, CertifiedCurve
from stamm.activations.certificates.intervals import LINE, Box, NotEnclosed

BRACKET = 1e-12  # width of a bracket, relative to the zero where that is beyond 1
_BUDGET = 2000  # boxes per derivative
_NARROW = 1e-13
_VANISHED = 1e-290  # below it products leave the doubles: no sign, and no sign of a zero either
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
        found = _monotone(cell, order, a, b)
        blurred = b - a < _SHORT and _sign(_box(cell, order, *[0.5 * (a + b)] * 2)) is None
        if found is not None:
            yield from found
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
    """Zeros once each, without those at the rim of a stretch that is zero throughout."""
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
