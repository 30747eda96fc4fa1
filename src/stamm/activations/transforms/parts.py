"""A gradient as parts from left to right, and operations on them: map, cut, cover, add.

The order of two ends is decided numerically, at every set of sample values of the parameters; an
order that depends on the parameters raises an error, because a list of pieces has one order only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stamm.activations.spec import Piece
from stamm.activations.spec.expressions import VARIABLE, evaluate, parse, parse_interval
from stamm.activations.spec.gradient_checks import value_of
from stamm.activations.transforms.rewriting import minus, over, plus, substituted, times
from stamm.base.errors import ConfigError

Samples = Sequence[Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A formula between `low` and `high`, formulas in the parameters, or None for no end.

    integral   an antiderivative, or "" where none was stated
    """

    low: str | None = None
    low_closed: bool = False
    high: str | None = None
    high_closed: bool = False
    formula: str
    integral: str = ""


def parts_of(pieces: Sequence[Piece], samples: Samples) -> list[Part]:
    """The pieces as parts, from left to right at the first sample."""

    def part(piece: Piece) -> Part:
        ends = vars(parse_interval(piece.where))
        return Part(**ends, formula=piece.formula, integral=piece.integral)

    def start(item: Part) -> float:
        return -math.inf if item.low is None else value_of(item.low, samples[0])

    return sorted(map(part, pieces), key=start)


def pieces_of(parts: Sequence[Part]) -> tuple[Piece, ...]:
    """The parts as pieces; neighbours with the same formula and integral become one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and (last.formula, last.integral) == (part.formula, part.integral):
            joined[-1] = replace(last, high=part.high, high_closed=part.high_closed)
        else:
            joined.append(part)
    return tuple(Piece(where=_where(p), formula=p.formula, integral=p.integral) for p in joined)


def order(left: str | None, right: str | None, samples: Samples, *, where: str) -> int:
    """-1, 0 or 1: whether one number lies below, at or above another, at all samples.

    Raises   ConfigError when that depends on the parameters.
    """
    assert left is not None and right is not None, "an end at infinity has no text"
    found = set()
    for values in samples:
        p, q = value_of(left, values), value_of(right, values)
        close = abs(p - q) <= 1e-12 * max(abs(p), abs(q))
        found.add(0 if close else 1 if p > q else -1)
    if len(found) > 1:
        raise ConfigError(
            f"whether {left} lies below {right} depends on the parameters",
            where=where,
            fix="Constrain the parameters so that the knots keep their order",
        )
    return found.pop()


def mapped(
    parts: Sequence[Part],
    *,
    scale: str,
    shift: str,
    height: str,
    linear: str,
    rising: bool,
) -> list[Part]:
    """The gradient of height*f(scale*x + shift) + linear*x, from the parts of f'.

    rising   whether `scale` is positive; otherwise ends swap sides, including which part owns them
    """
    inner = plus(times(scale, VARIABLE), shift)

    def one(part: Part) -> Part:
        ends = [None if e is None else moved(e, scale, shift) for e in (part.low, part.high)]
        closed = [part.low_closed, part.high_closed]
        if not rising:
            ends.reverse()
            closed.reverse()
        slope = times(times(height, scale), substituted(part.formula, {VARIABLE: inner}))
        integral = ""
        if part.integral:
            integral = plus(
                times(height, substituted(part.integral, {VARIABLE: inner})),
                times(linear, VARIABLE),
            )
        return Part(
            low=ends[0],
            low_closed=closed[0],
            high=ends[1],
            high_closed=closed[1],
            formula=plus(slope, linear),
            integral=integral,
        )

    done = [one(part) for part in parts]
    return done if rising else done[::-1]


def moved(knot: str, scale: str, shift: str) -> str:
    """The x at which scale*x + shift is at the knot."""
    return over(minus(knot, shift), scale)


def cut(
    parts: Sequence[Part], knot: str, samples: Samples, *, left_owns: bool, where: str
) -> list[Part]:
    """The parts with one more knot; where there is a knot already, nothing changes."""
    done: list[Part] = []
    for part in parts:
        after = part.low is None or order(part.low, knot, samples, where=where) < 0
        before = part.high is None or order(knot, part.high, samples, where=where) < 0
        if not (after and before):
            done.append(part)
            continue
        done.append(replace(part, high=knot, high_closed=left_owns))
        done.append(replace(part, low=knot, low_closed=not left_owns))
    return done


def below(
    parts: Sequence[Part], knot: str, samples: Samples, *, owned: bool, where: str
) -> list[Part]:
    """The parts left of the knot. owned: whether the knot itself belongs to it."""
    halves = cut(parts, knot, samples, left_owns=owned, where=where)
    kept = [
        p for p in halves if p.high is not None and order(p.high, knot, samples, where=where) <= 0
    ]
    return [*kept[:-1], replace(kept[-1], high=knot, high_closed=owned)]


def above(
    parts: Sequence[Part], knot: str, samples: Samples, *, owned: bool, where: str
) -> list[Part]:
    """The parts right of the knot. owned: whether the knot itself belongs to it."""
    halves = cut(parts, knot, samples, left_owns=not owned, where=where)
    kept = [
        p for p in halves if p.low is not None and order(p.low, knot, samples, where=where) >= 0
    ]
    return [replace(kept[0], low=knot, low_closed=owned), *kept[1:]]


def added(
    terms: Sequence[tuple[str, Sequence[Part]]], samples: Samples, *, where: str
) -> list[Part]:
    """The weighted sum of gradients on the common refinement of their knots.

    Edge   where several of them have a knot at one place, the one that jumps most there, the
           first among equals, decides which side owns it. The integral is known where all are.
    """
    knots = _knots(terms, samples, where)
    refined = []
    for weight, parts in terms:
        for knot, left_owns in knots:
            parts = cut(parts, knot, samples, left_owns=left_owns, where=where)
        refined.append((weight, parts))
    done = []
    for i in range(len(knots) + 1):
        formula, integral = "0", "0"
        known = True
        for weight, parts in refined:
            formula = plus(formula, times(weight, parts[i].formula))
            own = parts[i].integral or ("0" if parts[i].formula == "0" else "")
            known = known and bool(own)
            integral = plus(integral, times(weight, own)) if known else ""
        low, left_owns_low = knots[i - 1] if i else (None, True)
        high, left_owns_high = knots[i] if i < len(knots) else (None, False)
        done.append(
            Part(
                low=low,
                low_closed=not left_owns_low,
                high=high,
                high_closed=left_owns_high,
                formula=formula,
                integral="" if formula == "0" else integral,
            )
        )
    return done


def _knots(
    terms: Sequence[tuple[str, Sequence[Part]]], samples: Samples, where: str
) -> list[tuple[str, bool]]:
    """All knots from left to right, each with whether its left side owns it."""
    found: list[tuple[str, bool, float]] = []
    for weight, parts in terms:
        for left, right in itertools.pairwise(parts):
            assert left.high is not None
            size = abs(value_of(weight, samples[0])) * _step(left, right, samples[0])
            same = next(
                (
                    i
                    for i, (knot, _, _) in enumerate(found)
                    if order(knot, left.high, samples, where=where) == 0
                ),
                None,
            )
            if same is None:
                found.append((left.high, left.high_closed, size))
            elif size > found[same][2] * (1 + 1e-9):
                found[same] = (found[same][0], left.high_closed, size)
    found.sort(key=lambda item: value_of(item[0], samples[0]))
    return [(knot, owns) for knot, owns, _ in found]


def _step(left: Part, right: Part, values: Mapping[str, float]) -> float:
    """Jump of the gradient between two neighbours; infinite where it has no value."""
    assert left.high is not None
    at = {**values, VARIABLE: value_of(left.high, values)}
    try:
        return abs(evaluate(parse(left.formula), at) - evaluate(parse(right.formula), at))
    except (ArithmeticError, ValueError):
        return math.inf


def _where(part: Part) -> str:
    if part.low is None and part.high is None:
        return "all x"
    lower, upper = ("<=" if closed else "<" for closed in (part.low_closed, part.high_closed))
    if part.low is None:
        return f"x {upper} {part.high}"
    if part.high is None:
        return f"x {'>=' if part.low_closed else '>'} {part.low}"
    return f"{part.low} {lower} x {upper} {part.high}"
