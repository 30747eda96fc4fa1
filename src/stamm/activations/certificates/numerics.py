"""Where f and f' leave the range of each number format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.certificates.intervals import LINE, NotEnclosed, hull
from stamm.activations.certificates.rounding import below, shown

# By format: its largest finite number, and the least real number that rounds beyond it.
FORMATS: Mapping[str, tuple[float, float]] = {
    "fp8_e4m3": (448.0, 464.0),
    "fp8_e5m2": (57344.0, 61440.0),
    "fp16": (65504.0, 65520.0),
    "bf16": (2.0**128 - 2.0**120, 2.0**128 - 2.0**119),
    "fp32": (2.0**128 - 2.0**104, 2.0**128 - 2.0**103),
}
_NAMES = ("f", "f'")
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
