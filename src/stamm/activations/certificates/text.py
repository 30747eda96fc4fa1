"""A certificate as short lines for a terminal. Reads plain data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    lines = [(label, _claim_text(_found(certificate, path))) for label, path in _LINES]
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
    found = certificate["symmetry"]
    lines = [("symmetry", _claim_text(part)) for part in found.values() if part.get("holds")]
    if found["homogeneous"]["degree"] is not None:
        lines.append(("scaling", _claim_text(found["homogeneous"])))
    return lines


def _found(certificate: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    section: Any = certificate
    for name in path:
        section = section[name]
    found: Mapping[str, Any] = section
    return found


def _claim_text(section: Mapping[str, Any]) -> str:
    status = section["status"]
    reason = f": {section['reason']}" if "reason" in section else ""
    return str(section["claim"]) if status == "proved" else f"{section['claim']} [{status}{reason}]"
