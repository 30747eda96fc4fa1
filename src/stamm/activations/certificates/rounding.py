"""Numbers of a certificate, twelve digits with bounds rounded outward, and its text and warnings from plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

DIGITS = 12
_NEAREST = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN)
_DOWN = Context(prec=DIGITS, rounding=ROUND_FLOOR)
_UP = Context(prec=DIGITS, rounding=ROUND_CEILING)
_FINE_DOWN = Context(prec=14, rounding=ROUND_FLOOR)
_FINE_UP = Context(prec=14, rounding=ROUND_CEILING)
_SHORT_DOWN = Context(prec=6, rounding=ROUND_FLOOR)
_SHORT_UP = Context(prec=6, rounding=ROUND_CEILING)


def not_proved(claim: str, reason: str) -> dict[str, str]:
    """The section of a claim that could not be proved."""
    return {"claim": claim, "status": "not proved", "reason": reason}


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


_LINES = (
    ("range", ("bounds", "function")),
    ("gradient", ("bounds", "slope")),
    ("Lipschitz", ("bounds", "lipschitz")),
    ("zeros", ("shape", "zeros")),
    ("turning points", ("shape", "zeros_of_slope")),
    ("monotone", ("shape", "monotone")),
    ("convexity", ("shape", "convex")),
    ("jumps", ("shape", "jumps")),
    ("smoothness", ("shape", "smoothness")),
    ("inverse", ("shape", "inverse")),
    ("kind", ("kind",)),
    ("signal", ("gaussian", "moments")),
    ("spectrum", ("gaussian", "hermite")),
    ("edge of chaos", ("gaussian", "edge_of_chaos")),
    ("overflow", ("numerics", "function_overflow")),
    ("conditioning", ("numerics", "conditioning")),
)


def certificate_text(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, claim) pairs, one line each; brackets mark a claim that is not proved.

    Checked  tests/unit/activations/test_certificate.py
    """
    lines = [(label, _claim_text(_section(certificate, path))) for label, path in _LINES]
    lines += _sides(certificate) + _symmetries(certificate)
    if "order" in certificate["arity"]:
        lines.insert(0, ("inputs", certificate["arity"]["claim"]))
    if certificate["for_all_parameters"]:
        facts = "; ".join(fact["claim"] for fact in certificate["for_all_parameters"])
        lines.append(("all parameters", facts))
    lines += [("warning", warning) for warning in certificate["warnings"]]
    return lines


def _sides(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The line on each side, or how f grows where there is none."""
    lines = []
    for side in ("left", "right"):
        line = certificate["asymptotes"][side]
        growth = certificate["bounds"][f"growth_{side}"]
        curved = line["status"] == "proved" and line["slope"] is None
        lines.append((side, _claim_text(growth if curved else line)))
    return lines


def _symmetries(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The identities that hold; those that do not are left out."""
    symmetry = certificate["symmetry"]
    lines = [("symmetry", _claim_text(part)) for part in symmetry.values() if part.get("holds")]
    if symmetry["homogeneous"]["degree"] is not None:
        lines.append(("scaling", _claim_text(symmetry["homogeneous"])))
    return lines


def _section(certificate: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    section: Any = certificate
    for name in path:
        section = section[name]
    entry: Mapping[str, Any] = section
    return entry


def _claim_text(section: Mapping[str, Any]) -> str:
    status = section["status"]
    reason = f": {section['reason']}" if "reason" in section else ""
    return str(section["claim"]) if status == "proved" else f"{section['claim']} [{status}{reason}]"


UNSTABLE = 1.5
NEARLY_LINEAR = 0.01
EARLY = 100.0


def warnings_of(certificate: Mapping[str, Any]) -> list[str]:
    """The sentences that apply, in a fixed order.

    A variance map with a slope above 1.5, a nonlinearity index below 0.01, a gradient without
    bound, an overflow of fp16 within |x| <= 100, jumps, flat parts, and what was left unproved.
    Checked  tests/unit/activations/test_certificate.py
    """
    warnings: list[str] = []
    moments = certificate["gaussian"]["moments"]
    slope = moments.get("q_slope")
    if slope is not None and slope > UNSTABLE:
        warnings.append(
            f"The variance map is unstable (slope {slope:.3g} at its fixed point):"
            " use a normaliser before it."
        )
    index = moments.get("nonlinearity_index")
    if index is not None and index < NEARLY_LINEAR:
        warnings.append(f"It is nearly linear under N(0, 1): nonlinearity index {index:.2g}.")
    warnings += _gradient(certificate)
    warnings += _overflow(certificate)
    jumps = [j for j in certificate["shape"]["jumps"].get("at", []) if j["of"] == "f"]
    if jumps:
        places = ", ".join(f"{j['at']:g}" for j in jumps)
        warnings.append(f"f is discontinuous at x = {places}: its gradient does not see the jump.")
    flat = certificate["shape"]["zeros_of_slope"].get("flat", [])
    if flat:
        warnings.append("Its gradient is zero on an interval: a unit there receives no signal.")
    if certificate["surrogate"]:
        warnings.append("The backward pass uses a declared surrogate, not the f' certified here.")
    return warnings


def _gradient(certificate: Mapping[str, Any]) -> list[str]:
    slope = certificate["bounds"]["slope"]
    if slope["status"] != "proved":
        return ["Bounds of the gradient could not be proved."]
    sides = [
        side for side, end in (("below", slope["low"]), ("above", slope["high"])) if end is None
    ]
    return [f"The gradient is unbounded {' and '.join(sides)}."] if sides else []


def _overflow(certificate: Mapping[str, Any]) -> list[str]:
    row = certificate["numerics"]["function_overflow"].get("finite_up_to", {}).get("fp16", {})
    early = [reach for reach in row.values() if reach is not None and reach < EARLY]
    return [f"f overflows fp16 beyond |x| = {min(early):.4g}."] if early else []
