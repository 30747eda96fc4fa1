"""Independent checks of a derivation at many digits, whatever the method that found it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mpmath
import torch
from sympy import Symbol
from torch import Tensor

from stamm.activations.certificates.certificate import certify
from stamm.activations.conformance.exact import (
    FUNCTION,
    SLOPE,
    exact_quantities,
    log_uniform_inputs,
)
from stamm.activations.conformance.reference import evaluate
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branches, Derived, bounds, number, to_sympy
from stamm.activations.derivation.primitives import X
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import parse
from stamm.base.files import canonical_json, read_json

DIGITS = 30
_POINTS = 60
_WIDE = 160
_STEP = 40  # decimal places of the step of a difference quotient
_MAGNITUDES = (1e-6, 30.0)
_AT_KNOT = 60


def prove(spec: Spec, *, points: int = _POINTS) -> list[CheckResult]:
    """Derive the spec and check the result at 30 digits, at the initial and at moved values.

    The slope of f is the stated gradient; f is continuous where no jump is declared and jumps by
    what is declared elsewhere; f meets its anchor; each df/dp is the slope of f in p. Slopes are
    central differences of f, which use nothing of the symbolic derivatives.

    Raises   ConfigError when the spec cannot be integrated.
    """
    derived = derive(spec)
    samples = spec.sample_values()
    return [
        finding("slope of f is the stated gradient", lambda: _slopes(derived, samples, points)),
        finding("f at the knots", lambda: _knots(derived, samples)),
        finding("f at the anchor", lambda: _anchor(derived, samples)),
        finding("stable forms equal f", lambda: _forms(derived, samples, points)),
        *(
            finding(
                f"slope in {p.name}", functools.partial(_in_parameter, derived, samples, i, points)
            )
            for i, p in enumerate(spec.trainable)
        ),
    ]


def _slopes(
    derived: Derived, samples: Sequence[Mapping[str, float]], count: int
) -> tuple[bool, str]:
    worst = mpmath.mpf(0)
    total = 0
    with mpmath.workdps(_WIDE):
        for values in samples:
            xs = _points(derived.exact.slope, values, count)
            steps = [_step(x) for x in xs]
            ahead = evaluate(derived.exact.function, _sums(xs, steps, 1), values)
            behind = evaluate(derived.exact.function, _sums(xs, steps, -1), values)
            stated = evaluate(derived.exact.slope, xs, values)
            for a, b, h, g in zip(ahead, behind, steps, stated, strict=True):
                worst = max(worst, _relative((a - b) / (2 * h), g))
            total += len(xs)
        return _difference_text(worst, f"{total} points, {len(samples)} sets of values")


def _in_parameter(
    derived: Derived, samples: Sequence[Mapping[str, float]], position: int, count: int
) -> tuple[bool, str]:
    name = derived.spec.trainable[position].name
    worst = mpmath.mpf(0)
    total = 0
    with mpmath.workdps(_WIDE):
        for values in samples:
            xs = _points(derived.exact.slope, values, count)
            step = _step(mpmath.mpf(values[name]))
            shifted = [{**values, name: mpmath.mpf(values[name]) + s * step} for s in (1, -1)]
            ahead, behind = (evaluate(derived.exact.function, xs, moved) for moved in shifted)
            stated = evaluate(derived.exact.parameter_slopes[position], xs, values)
            for a, b, g in zip(ahead, behind, stated, strict=True):
                worst = max(worst, _relative((a - b) / (2 * step), g))
            total += len(xs)
        return _difference_text(worst, f"{total} points, {len(samples)} sets of values")


def _forms(
    derived: Derived, samples: Sequence[Mapping[str, float]], count: int
) -> tuple[bool, str]:
    """The formulas that kernels are made from against the formulas as integrated."""
    worst = mpmath.mpf(0)
    pairs = [
        (derived.exact.function, derived.stable.function),
        (derived.exact.slope, derived.stable.slope),
        *zip(derived.exact.parameter_slopes, derived.stable.parameter_slopes, strict=True),
    ]
    with mpmath.workdps(_WIDE):
        for values in samples:
            xs = _points(derived.exact.slope, values, count)
            for exact, stable in pairs:
                both = zip(evaluate(exact, xs, values), evaluate(stable, xs, values), strict=True)
                worst = max([worst, *(_relative(actual, true) for true, actual in both)])
        return _difference_text(worst, f"f, f' and {len(pairs) - 2} parameter slopes")


def _knots(derived: Derived, samples: Sequence[Mapping[str, float]]) -> tuple[bool, str]:
    """The function has jumps only where they are declared, and of the declared size."""
    worst, count, jumps = mpmath.mpf(0), 0, 0
    with mpmath.workdps(_WIDE):
        near = mpmath.mpf(10) ** -_AT_KNOT
        for values in samples:
            for left, right in itertools.pairwise(derived.exact.function):
                knot = bounds(left, values)[1]
                below, above = (
                    number(branch.formula, {**values, X.name: knot + side * near})
                    for branch, side in ((left, -1), (right, 1))
                )
                declared = _declared_jump(derived.spec, knot, values)
                worst = max(worst, abs(above - below - declared) / (1 + abs(above)))
                count += 1
                jumps += declared != 0
    if not count:
        return True, "there are none"
    # Beside a knot with an infinite gradient f may still change by the square root of the step.
    passed = worst < mpmath.mpf(10) ** -(_AT_KNOT // 3)
    described = f"{count} checked, largest gap {mpmath.nstr(worst, 3)}"
    return bool(passed), described + (f", {jumps} jump as declared" if jumps else "")


def _declared_jump(spec: Spec, knot: Any, values: Mapping[str, float]) -> Any:
    sizes = [_stated(jump.by, spec, values) for jump in spec.jumps]
    places = [_stated(jump.at, spec, values) for jump in spec.jumps]
    here = [size for size, at in zip(sizes, places, strict=True) if at == knot]
    return mpmath.fsum(here)


def _anchor(derived: Derived, samples: Sequence[Mapping[str, float]]) -> tuple[bool, str]:
    worst = mpmath.mpf(0)
    with mpmath.workdps(_WIDE):
        for values in samples:
            at, height = (_stated(text, derived.spec, values) for text in derived.spec.anchor)
            # From the side of the piece that owns it: its integral may have only a limit there.
            value = _near(derived.exact.function, at, values)
            worst = max(worst, abs(value - height) / (1 + abs(height)))
    passed = worst < mpmath.mpf(10) ** -(_AT_KNOT // 3)
    at_text, height_text = derived.spec.anchor
    return bool(passed), f"f({at_text}) = {height_text} to within {mpmath.nstr(worst, 3)}"


def _near(branches: Branches, at: Any, values: Mapping[str, float]) -> Any:
    for branch in branches:
        low, high = bounds(branch, values)
        if low <= at <= high:
            side = 1 if at < high else -1
            x = at + side * mpmath.mpf(10) ** -_AT_KNOT
            return number(branch.formula, {**values, X.name: x})
    raise AssertionError("pieces cover the line")


def _stated(text: str, spec: Spec, values: Mapping[str, float]) -> Any:
    """The value of a formula in the parameters, at the working precision."""
    symbols = {p.name: Symbol(p.name, real=True) for p in spec.parameters}
    return number(to_sympy(parse(text), symbols), values)


def _points(branches: Branches, values: Mapping[str, float], count: int) -> list[Any]:
    """Points of both signs, log-uniform in magnitude, none of them within a step of a knot."""
    low, high = (mpmath.log(bound) for bound in _MAGNITUDES)
    half = [mpmath.exp(low + (high - low) * i / (count // 2 - 1)) for i in range(count // 2)]
    ends = [end for branch in branches for end in bounds(branch, values)]
    knots = {end for end in ends if mpmath.isfinite(end)}
    around = [k + s * h for k in knots for s in (-1, 1) for h in half[:: max(1, count // 20)]]
    points = [*(-h for h in half), *half, *around]
    return [x for x in points if all(abs(x - k) > 1e-9 for k in knots)]


def _sums(points: Sequence[Any], steps: Sequence[Any], sign: int) -> list[Any]:
    return [x + sign * h for x, h in zip(points, steps, strict=True)]


def _step(x: Any) -> Any:
    return max(abs(x), mpmath.mpf(1) / 1000) * mpmath.mpf(10) ** -_STEP


def _relative(given: Any, true: Any) -> Any:
    return abs(given - true) / max(abs(true), mpmath.mpf(10) ** -DIGITS)


def _difference_text(worst: Any, over: str) -> tuple[bool, str]:
    passed = worst < mpmath.mpf(10) ** -DIGITS
    return bool(passed), f"largest relative difference {mpmath.nstr(worst, 3)} over {over}"


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
