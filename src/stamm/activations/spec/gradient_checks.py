"""Numerical checks of a stated gradient, before anything is derived from it."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from stamm.activations.spec.expressions import (
    VARIABLE,
    PieceInterval,
    divisors,
    evaluate,
    logarithms,
    one_sided,
    parse,
    sign,
    signs,
    symbols,
)
from stamm.activations.spec.unchecked import UncheckedSpec

Values = Mapping[str, float]
_REACH = 1e3  # samples go this far from the knots
_FAR_OUT = 1e9  # knots and anchors beyond it are refused: nothing is sampled there
_GROWTH = 10.0  # beyond it an overflow is growth, not a pole
_STEPS = 48
_JUMP = "--continuity jump, or continuity='jump' in a Spec"
_NEAR_ZERO = 1e-6  # of an argument of sign(...) where its sign changes, relative


def gradient_problems(
    pieces: Sequence[tuple[str, ast.expr]],
    intervals: Sequence[PieceInterval],
    samples: Sequence[Values],
    anchor: tuple[str, str],
    continuity: str,
) -> list[str]:
    """Every problem of a piecewise gradient, as text; empty when there is none.

    pieces      (where the piece holds, its formula)
    samples     parameter values to test with
    continuity  "continuous", "jump" or "singular", as in Spec
    """
    for values in samples:
        order, problems = _cover(pieces, intervals, values)
        if not problems:
            singular = continuity == "singular"
            problems = [
                p for i in order for p in _poles(*pieces[i], intervals[i], values, singular)
            ]
        if not problems and continuity == "continuous":
            problems = [
                *_jumps(pieces, intervals, order, values),
                *(p for i in order for p in _inner_jumps(*pieces[i], intervals[i], values)),
            ]
        if not problems:
            problems = list(_anchor(anchor, values))
        if problems:
            return problems
    return []


def value_of(text: str, values: Values) -> float:
    """The value of a formula in the parameters.

    Raises   ArithmeticError or ValueError where it has none; those of a Spec all have one.
    """
    return evaluate(parse(text), values)


class StatedGradient:
    """The stated gradient of a spec as a function of x, at given values of all parameters.

    knots   where two pieces meet, from left to right
    """

    def __init__(self, spec: UncheckedSpec, values: Values) -> None:
        self._values = dict(values)
        self._pieces = [
            (*_ends(interval, values), interval.low_closed, interval.high_closed, tree)
            for interval, tree in zip(spec.intervals, spec.trees, strict=True)
        ]
        ends = {end for low, high, *_ in self._pieces for end in (low, high)}
        self.knots = sorted(end for end in ends if math.isfinite(end))

    def __call__(self, x: float) -> float:
        """f'(x); at a knot that of the piece which holds it.

        Raises   ArithmeticError where no piece holds x, as for NaN.
        """
        for low, high, low_closed, high_closed, tree in self._pieces:
            above = x >= low if low_closed else x > low
            below = x <= high if high_closed else x < high
            if above and below:
                return evaluate(tree, {**self._values, VARIABLE: x})
        raise ArithmeticError(f"no piece holds {x!r}")


def value_or_nan(text: str, values: Values) -> float:
    """The value of a formula in the parameters, or NaN where it has none."""
    return _evaluate_or_nan(parse(text), values)


def no_value(what: str, values: Values) -> str:
    """The problem of a place or a height without a finite value, as text."""
    return f"{what} has no finite value{_given(values)}"


def _evaluate_or_nan(tree: ast.expr, values: Values) -> float:
    try:
        return evaluate(tree, values)
    except (ArithmeticError, ValueError):
        return math.nan


def _bound(text: str | None, values: Values, otherwise: float) -> float:
    return otherwise if text is None else value_or_nan(text, values)


def _ends(interval: PieceInterval, values: Values) -> tuple[float, float]:
    return _bound(interval.low, values, -math.inf), _bound(interval.high, values, math.inf)


def _cover(
    pieces: Sequence[tuple[str, ast.expr]], intervals: Sequence[PieceInterval], values: Values
) -> tuple[list[int], list[str]]:
    for (where, _), interval in zip(pieces, intervals, strict=True):
        for text in (interval.low, interval.high):
            if text is not None and not math.isfinite(value_or_nan(text, values)):
                return [], [no_value(f"the knot {text!r} of piece {where!r}", values)]
    ends = [_ends(interval, values) for interval in intervals]
    order = sorted(range(len(pieces)), key=lambda i: ends[i])
    far = [(i, e) for i in order for e in ends[i] if _FAR_OUT < abs(e) < math.inf]
    if far:
        where, knot = pieces[far[0][0]][0], far[0][1]
        return order, [
            f"piece {where!r} has a knot at x = {knot:g}, beyond {_FAR_OUT:g}{_given(values)}"
        ]
    problems = [
        f"piece {pieces[i][0]!r} is empty{_given(values)}"
        for i in order
        if ends[i][0] >= ends[i][1]
    ]
    if ends[order[0]][0] > -math.inf:
        problems.append(f"no piece holds below x = {ends[order[0]][0]:g}")
    for left, right in itertools.pairwise(order):
        names = f"{pieces[left][0]!r} and {pieces[right][0]!r}"
        stop, start = ends[left][1], ends[right][0]
        closed = intervals[left].high_closed + intervals[right].low_closed
        if stop < start or (stop == start and closed == 0):
            gap = f"x = {stop:g}" if stop == start else f"x = {(stop + start) / 2:g}"
            problems.append(f"{gap} lies in no piece: gap between {names}{_given(values)}")
        elif stop > start or closed == 2:
            point = stop if stop == start else (min(stop, ends[right][1]) + start) / 2
            problems.append(f"x = {point:g} lies in two pieces: {names} overlap{_given(values)}")
    last = max(end[1] for end in ends)
    if last < math.inf:
        problems.append(f"no piece holds above x = {last:g}")
    return order, problems


def _points(low: float, high: float) -> list[float]:
    """Points of the interval, log-uniform away from each finite end and from 0."""
    steps = [10.0 ** (-6 + 9 * i / _STEPS) for i in range(_STEPS + 1)]
    centres = {0.0, *(end for end in (low, high) if math.isfinite(end))}
    points = {c + sign * step for c in centres for sign in (-1.0, 1.0) for step in steps}
    if math.isfinite(low) and math.isfinite(high):
        points |= {low + (high - low) * i / _STEPS for i in range(1, _STEPS)}
    return sorted(p for p in points | centres if low < p < high and abs(p) <= _REACH)


def _wide_points(low: float, high: float) -> list[float]:
    """`_points`, and further out up to 1e38."""
    outer = [s * 10.0 ** (k / 4) for s in (-1.0, 1.0) for k in range(12, 153)]
    return sorted({*_points(low, high), *(p for p in outer if low < p < high)})


def _poles(
    where: str, tree: ast.expr, interval: PieceInterval, values: Values, singular: bool
) -> Iterator[str]:
    low, high = _ends(interval, values)
    points = _points(low, high)
    ends = [] if singular else [end for end in (low, high) if math.isfinite(end)]
    wide = _wide_points(low, high)
    for divisor, exponent in divisors(tree):
        if VARIABLE not in symbols(exponent) and not _evaluate_or_nan(exponent, values) < 0:
            continue
        name = ast.unparse(divisor)
        if VARIABLE not in symbols(divisor):
            if _evaluate_or_nan(divisor, values) == 0:
                yield f"piece {where!r} has a pole at every x: {name} is 0{_given(values)}"
                return
            continue
        for at in _roots(divisor, wide, values):
            if _evaluate_or_nan(exponent, {**values, VARIABLE: at}) < 0:
                if _has_limit(tree, at, values):
                    yield (
                        f"piece {where!r} has no value at x = {at:.6g}: {name} and what it divides"
                        f" are 0 there{_given(values)}. Write a power series on a piece around it; stamm"
                        " does so at x = 0, for a quotient without parameters"
                    )
                    return
                yield (
                    f"piece {where!r} has a pole at x = {at:.6g}: {name} is 0 there{_given(values)}"
                )
                return
    for point in [*ends, *points]:
        try:
            value = evaluate(tree, {**values, VARIABLE: point})
        except OverflowError:
            if abs(point) > _GROWTH:
                continue
            value = math.inf
        except (ArithmeticError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            yield f"piece {where!r} has no finite value at x = {point:.6g}{_given(values)}"
            return
    for argument in logarithms(tree):
        for at in _roots(argument, wide, values) if VARIABLE in symbols(argument) else ():
            name = ast.unparse(argument)
            yield (
                f"piece {where!r} has no finite value at x = {at:.6g}: {name} is 0 in a logarithm"
                f"{_given(values)}"
            )
            return


def _has_limit(tree: ast.expr, at: float, values: Values) -> bool:
    """Whether a formula approaches one number on both sides of a zero of a divisor."""
    beside = [
        _evaluate_or_nan(tree, {**values, VARIABLE: at + s * h})
        for h in (1e-3, 1e-4)
        for s in (-1, 1)
    ]
    return max(beside) - min(beside) <= 0.02 * (1 + abs(beside[0]))


def _roots(divisor: ast.expr, points: Sequence[float], values: Values) -> Iterator[float]:
    """Zeros of `divisor` among and between the points, from left to right."""

    def at(x: float) -> float:
        try:
            return evaluate(divisor, {**values, VARIABLE: x})
        except OverflowError:
            return math.inf
        except (ArithmeticError, ValueError):
            return math.nan

    heights = [at(point) for point in points]
    for i, height in enumerate(heights):
        if height == 0:
            yield points[i]
        elif i + 1 < len(points) and height * heights[i + 1] < 0:
            yield _bisect(at, points[i], points[i + 1])
        # A zero of even order changes no sign: look for a minimum of the magnitude that reaches 0.
        inner = height != 0 and math.isfinite(height) and 0 < i < len(points) - 1
        beside = [abs(h) for h in heights[i - 1 : i + 2 : 2]] if inner else []
        # Three equal heights are a constant, as that of 1 + exp(x) far below 0.
        if inner and abs(height) <= min(beside) and abs(height) < max(beside):
            low = _lowest(at, points[i - 1], points[i + 1])
            if abs(at(low)) <= 1e-12 * max(beside):
                yield low


def _bisect(at: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        if at(low) * at(middle) <= 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _lowest(at: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(120):
        third = (high - low) / 3
        if abs(at(low + third)) < abs(at(high - third)):
            high -= third
        else:
            low += third
    return (low + high) / 2


def _jumps(
    pieces: Sequence[tuple[str, ast.expr]],
    intervals: Sequence[PieceInterval],
    order: Sequence[int],
    values: Values,
) -> Iterator[str]:
    for left, right in itertools.pairwise(order):
        knot = _ends(intervals[left], values)[1]
        at = {**values, VARIABLE: knot}
        below, above = (one_sided(pieces[i][1], at, s) for i, s in ((left, -1.0), (right, 1.0)))
        if _differ(below, above):
            yield (
                f"declared continuous, but the gradient jumps at x = {knot:g}: {below:.6g} by"
                f" piece {pieces[left][0]!r}, {above:.6g} by piece {pieces[right][0]!r}"
                f"{_given(values)}. If it is meant to: {_JUMP}"
            )


def _inner_jumps(
    where: str, tree: ast.expr, interval: PieceInterval, values: Values
) -> Iterator[str]:
    """Jumps inside a piece: where the argument of a sign(...) changes its sign."""
    arguments = signs(tree)
    points = _wide_points(*_ends(interval, values)) if arguments else []
    for argument in arguments:
        for neighbours in _sign_changes(argument, points, values):
            sides = [_sides(tree, point, values) for point in neighbours]
            # A factor that is 0 there too, as in x*sign(x), changes its own sign beside the place.
            steps = [above - below for below, above in sides]
            if all(_differ(*side) for side in sides) and steps[0] * steps[-1] > 0:
                below, above = sides[0]
                at = f"x = {min(neighbours, key=abs):.6g} inside piece {where!r}"
                yield (
                    f"declared continuous, but the gradient jumps at {at}: {below:.6g} below,"
                    f" {above:.6g} above{_given(values)}. If it is meant to: {_JUMP}"
                )
                return


def _sides(tree: ast.expr, point: float, values: Values) -> tuple[float, float]:
    at = {**values, VARIABLE: point}
    return one_sided(tree, at, -1.0), one_sided(tree, at, 1.0)


def _sign_changes(
    argument: ast.expr, points: Sequence[float], values: Values
) -> Iterator[tuple[float, float]]:
    """Neighbouring numbers between which the sign of `argument` changes, from left to right."""

    def at(x: float) -> float:
        return _evaluate_or_nan(argument, {**values, VARIABLE: x})

    samples = [at(point) for point in points]
    for i, (first, second) in enumerate(itertools.pairwise(samples)):
        if sign(first) != sign(second):
            low, high = points[i], points[i + 1]
            while low < (middle := (low + high) / 2) < high:
                low, high = (middle, high) if sign(at(middle)) == sign(first) else (low, middle)
            # sin(x) at 1e30 has the sign of a rounding error: it does not approach 0.
            if min(abs(at(low)), abs(at(high))) <= _NEAR_ZERO * max(abs(first), abs(second)):
                yield low, high


def _differ(below: float, above: float) -> bool:
    """Whether two limits differ, or one of them is NaN."""
    return not abs(below - above) <= 1e-9 * max(1.0, abs(below), abs(above))


def _anchor(anchor: tuple[str, str], values: Values) -> Iterator[str]:
    for text in anchor:
        if not abs(value_or_nan(text, values)) <= _FAR_OUT:
            yield f"the anchor {text!r} has no finite value up to {_FAR_OUT:g}{_given(values)}"


def _given(values: Values) -> str:
    if not values:
        return ""
    return " with " + ", ".join(f"{name} = {value:g}" for name, value in values.items())
