"""Warnings for the reader of a certificate, as sentences, from the numbers of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNSTABLE = 1.5
NEARLY_LINEAR = 0.01
EARLY = 100.0


def warnings_of(certificate: Mapping[str, Any]) -> list[str]:
    """The sentences that apply, in a fixed order.

    A variance map with a slope above 1.5, a nonlinearity index below 0.01, a gradient without
    bound, an overflow of fp16 within |x| <= 100, jumps, flat parts, and what was left unproved.
    Checked  tests/unit/activations/test_certificate.py
    """
    found: list[str] = []
    moments = certificate["gaussian"]["moments"]
    slope = moments.get("q_slope")
    if slope is not None and slope > UNSTABLE:
        found.append(
            f"The variance map is unstable (slope {slope:.3g} at its fixed point):"
            " use a normaliser before it."
        )
    index = moments.get("nonlinearity_index")
    if index is not None and index < NEARLY_LINEAR:
        found.append(f"It is nearly linear under N(0, 1): nonlinearity index {index:.2g}.")
    found += _gradient(certificate)
    found += _overflow(certificate)
    jumps = [j for j in certificate["shape"]["jumps"].get("at", []) if j["of"] == "f"]
    if jumps:
        places = ", ".join(f"{j['at']:g}" for j in jumps)
        found.append(f"f is discontinuous at x = {places}: its gradient does not see the jump.")
    flat = certificate["shape"]["zeros_of_slope"].get("flat", [])
    if flat:
        found.append("Its gradient is zero on an interval: a unit there receives no signal.")
    if certificate["surrogate"]:
        found.append("The backward pass uses a declared surrogate, not the f' certified here.")
    return found


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
