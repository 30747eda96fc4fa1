"""A certificate made again: the same as the one that ships, and not contradicted by values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations.certificates.certificate import certify
from stamm.activations.conformance.exact import FUNCTION, SLOPE, exact_quantities
from stamm.activations.conformance.inputs import log_uniform_inputs
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Spec
from stamm.base.files import canonical_json, read_json

_SHIPPED = Path(__file__).parents[1] / "generated" / "certificates"
_COUNT = 100_000
_LARGEST = 1e6
_SLACK = 1e-12


def certificate_findings(spec: Spec, shipped: Path | None = None) -> list[CheckResult]:
    """The certificate at the initial values against the shipped one, and against float64 values.

    shipped   the stored certificate; of a catalogue entry the one that ships, where there is one
    """
    path = shipped or _SHIPPED / f"{spec.name}.json"
    return [
        finding("certificate", lambda: _reproduced(spec, path)),
        finding("certified bounds", lambda: _bounds(spec)),
    ]


def _reproduced(spec: Spec, path: Path) -> tuple[bool, str]:
    made = certify(derive(spec))
    counts = Counter(_statuses(made))
    described = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    stored = read_json(path) if path.is_file() else None
    if not isinstance(stored, dict) or stored.get("content_hash") != spec.content_hash:
        again = canonical_json(certify(derive(spec))) == canonical_json(made)
        return again, f"{described}; made twice with the same bytes"
    same = canonical_json(stored) == canonical_json(made)
    return same, f"{described}; {'equal to' if same else 'NOT equal to'} the shipped one"


def _bounds(spec: Spec) -> tuple[bool, str]:
    """No float64 value of f or of its gradient lies outside the bounds that are claimed."""
    bounds = certify(derive(spec))["bounds"]
    x = log_uniform_inputs(_COUNT).double()
    x = x[x.abs() < _LARGEST]
    exact = exact_quantities(spec, spec.initial_values(), x)
    described = []
    passed = True
    for name, quantity in ((FUNCTION, "f"), (SLOPE, "f'")):
        if name == SLOPE and spec.surrogate:
            continue
        low, high = bounds[name].get("low"), bounds[name].get("high")
        outside = _outside(exact[name].values, low, high)
        passed &= outside == 0
        described.append(f"{quantity} in [{_end(low)}, {_end(high)}]")
        if outside:
            described[-1] += f" but {outside} values are not"
    return passed, f"{', '.join(described)} at {len(x):,} inputs"


def _outside(values: Tensor, low: float | None, high: float | None) -> int:
    wrong = torch.isnan(values)
    if low is not None:
        wrong |= values < low - _SLACK * (1 + abs(low))
    if high is not None:
        wrong |= values > high + _SLACK * (1 + abs(high))
    return int(wrong.sum())


def _end(bound: float | None) -> str:
    return "none" if bound is None else f"{bound:.6g}"


def _statuses(section: Any) -> Iterator[str]:
    if isinstance(section, dict):
        if isinstance(section.get("status"), str):
            yield section["status"]
        for inner in section.values():
            yield from _statuses(inner)
    elif isinstance(section, list):
        for inner in section:
            yield from _statuses(inner)
