"""The certificate of an activation: claims with their status and evidence, as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stamm.activations.certificates.bounds import (
    asymptote,
    bounds_of,
    growth,
    lipschitz,
    overflow_of,
)
from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.certificates.gaussian import (
    Sampler,
    edge_of_chaos,
    harmonics,
    moments,
    parts,
    propagation,
    spectrum,
)
from stamm.activations.certificates.intervals import NotEnclosed
from stamm.activations.certificates.rounding import not_proved, warnings_of
from stamm.activations.certificates.shape import (
    bends_of,
    between_jumps,
    hot_spots,
    inverse_of,
    jumps_of,
    runs_of,
    sign_map,
    smoothness_of,
    zeros_of,
)
from stamm.activations.certificates.symmetry import (
    everywhere,
    homogeneity,
    is_analytic,
    kind_of,
    parity,
)
from stamm.activations.derivation.formulas import Derived, bounds
from stamm.activations.spec import Gated, Spec
from stamm.base.config import nearest
from stamm.base.errors import ConfigError

SCHEMA = 1


def certify(derived: Derived, values: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the claims proved, or else measured, of f at the given parameter values.

    Every section is {claim, status, evidence}; status is "proved", "measured", "not proved" or
    "not applicable". A bound of None means that there is none on that side.

    values    effective values of trainable parameters that differ from the initial ones
    Edge      a gated spec is certified as its gate f; the product has no Lipschitz constant.
              Equal input gives equal bytes: proved numbers have 12 digits, bounds rounded
              outward, brackets of zeros have 14, and measured ones have 10.
    Raises    ConfigError for an unknown parameter or a value its constraint does not allow.
    Checked   tests/unit/activations/test_certificate.py
    """
    spec = derived.spec
    chosen = _checked(derived, values or {})
    curve = CertifiedCurve(derived, chosen)
    jumps, by_order = jumps_of(curve)
    slope_bounds = _attempt("bounds of f'", lambda: bounds_of(curve, 1))
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "name": spec.name,
        "content_hash": spec.content_hash,
        "values": chosen,
        "surrogate": bool(spec.surrogate),
        "arity": _arity(spec),
        "bounds": {
            "function": _attempt("bounds of f", lambda: bounds_of(curve, 0)),
            "slope": slope_bounds,
            "lipschitz": lipschitz(slope_bounds, bool(by_order[0])),
            "growth_left": growth(curve, -1),
            "growth_right": growth(curve, 1),
        },
        "shape": _shape(curve, jumps, by_order),
        "asymptotes": {"left": asymptote(curve, -1), "right": asymptote(curve, 1)},
        "symmetry": {"homogeneous": homogeneity(curve), **parity(curve)},
        "kind": kind_of(curve),
        "gaussian": _gaussian(curve),
        "numerics": {
            "function_overflow": overflow_of(curve, 0),
            "slope_overflow": overflow_of(curve, 1),
        },
        "for_all_parameters": everywhere(derived),
    }
    made["numerics"]["conditioning"] = made["shape"].pop("conditioning")
    made["warnings"] = warnings_of(made)
    return made


def _checked(derived: Derived, given: Mapping[str, float]) -> dict[str, float]:
    """All parameter values, the given ones checked against names and constraints."""
    spec = derived.spec
    names = [p.name for p in spec.trainable]
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{name!r} is not a trainable parameter of {spec.name}",
                where=spec.where,
                fix=nearest(name, names) if names else "It has none",
            )
    chosen = {**spec.initial_values(), **{name: float(value) for name, value in given.items()}}
    spec.raw_values({name: chosen[name] for name in names})
    for branch in derived.exact.slope:
        low, high = bounds(branch, chosen)
        if not low < high:
            raise ConfigError(f"a piece of {spec.name} is empty at {chosen}", where=spec.where)
    return chosen


def _attempt(claim: str, section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The section, or an honest "not proved" with the reason."""
    try:
        return section()
    except NotEnclosed as reason:
        return not_proved(claim, str(reason))


def _arity(spec: Spec) -> dict[str, Any]:
    if not isinstance(spec.arity, Gated):
        return {"claim": "y = f(x): all sections are about y", "status": "not applicable"}
    up = "up" if spec.arity.up is None else "h(up)"
    return {
        "claim": f"y = f(gate) * {up}: all sections are about f; the product is multiplicative,"
        " of degree 2, and has no Lipschitz constant",
        "status": "not applicable",
        "order": spec.arity.order,
    }


def _shape(
    curve: CertifiedCurve, jumps: dict[str, Any], by_order: Mapping[int, Mapping[float, float]]
) -> dict[str, Any]:
    function, slope, curvature = (sign_map(curve, k, strict=k < 2) for k in (0, 1, 2))
    runs = between_jumps(slope, by_order[0])
    return {
        "zeros": zeros_of(function, "f"),
        "zeros_of_slope": zeros_of(slope, "f'"),
        "monotone": runs_of(runs),
        "convex": bends_of(curvature, by_order[1], list(by_order[0])),
        "jumps": jumps,
        "smoothness": smoothness_of(curve),
        "inverse": inverse_of(runs, bool(by_order[0])),
        "conditioning": hot_spots(function, slope),
    }


def _gaussian(curve: CertifiedCurve) -> dict[str, Any]:
    smooth = all(is_analytic(piece.formula) for piece in curve.pieces[0])
    try:
        sampler = Sampler(curve, graded=not smooth)
        standard = moments(sampler)
        return {
            "moments": propagation(standard),
            "parity": parts(standard),
            "hermite": spectrum(standard),
            "edge_of_chaos": edge_of_chaos(sampler),
            "harmonics": harmonics(sampler),
        }
    except (ArithmeticError, ValueError, NameError) as reason:
        unknown = {"status": "not proved", "reason": str(reason)}
        return {
            "moments": {"claim": "moments under N(0, 1)", **unknown},
            "parity": {"claim": "even and odd energy", **unknown},
            "hermite": {"claim": "Hermite spectrum", **unknown},
            "edge_of_chaos": {"claim": "edge of chaos", **unknown},
            "harmonics": {"claim": "harmonics", **unknown},
        }
