"""Shape of the graph: zeros, monotone and convex parts, jumps, smoothness, invertibility."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sympy import Expr

from stamm.activations.certificates.curve import CertifiedCurve, resolved, value_at, vanishes
from stamm.activations.certificates.rounding import bracket, nearest, shown
from stamm.activations.certificates.signs import SignInterval, SignMap, Zero
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
    found: list[dict[str, Any]] = []
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
            found.append(
                {
                    "of": _NAMES[order],
                    "at": nearest(float(knot)),
                    "by": nearest(size),
                    "exact": str(height),
                }
            )
    described = [f"{j['of']} jumps by {_size(j['by'])} at {shown(j['at'])}" for j in found]
    made = {
        "claim": "; ".join(described) if described else "f, f' and f'' have no jump",
        "status": "not proved" if curve.folded or undecided else "proved",
        "at": found,
    }
    if undecided:
        made["reason"] = f"thousands of digits do not tell a jump from 0: {', '.join(undecided)}"
    return made, by_order


def _size(by: float | None) -> str:
    return "less than any double" if by == 0.0 else shown(by)


def jump_at(curve: CertifiedCurve, position: int, order: int) -> Expr:
    """The right limit minus the left limit of a derivative of any order at a knot."""
    knot = curve.knots[position]
    left = value_at(curve.derivative(position, order), knot, -1)
    return value_at(curve.derivative(position + 1, order), knot, 1) - left


def smoothness_of(curve: CertifiedCurve) -> dict[str, Any]:
    """The order of the last derivative that is continuous everywhere; -1 when f jumps."""
    if curve.folded or not all(map(is_analytic, curve.smooth_parts())):
        reason = "a piece holds |u|, sign(u) or a power that need not be smooth"
        return {"claim": "smoothness", "status": "not proved", "reason": reason}
    if not curve.knots:
        return {"claim": "f is C^infinity", "status": "proved", "order": None}
    for order in range(SMOOTHEST + 1):
        heights = [jump_at(curve, i, order) for i in range(len(curve.knots))]
        jumps = [height for height in heights if not vanishes(height)]
        if jumps and all(resolved(height) is None for height in jumps):
            reason = f"thousands of digits do not tell a jump of the derivative {order} from 0"
            return {"claim": "smoothness", "status": "not proved", "reason": reason}
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
        return {"claim": "invertibility", "status": "not proved", "reason": reason}
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
