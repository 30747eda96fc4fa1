"""Certified bounds: published values, true bounds inside, honest refusals."""

from __future__ import annotations

import pytest
import sympy

from stamm.activations.catalog.core import (
    ATLU,
    GELU,
    RELU,
    RELU2,
    SILU,
    XGELU,
    XSILU,
)
from stamm.activations.catalog.xielu import XIELU, XIPRELU
from stamm.activations.certificates.bounds import bounds_of, growth, lipschitz, overflow_of
from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.certificates.shape import sign_map
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, Derived, Formulas
from stamm.activations.derivation.primitives import X, gompertz, gompertz_pdf
from stamm.activations.spec import Piece, Spec

WIDER = {"alpha": 0.2}


def certified(spec: Spec, **values: float) -> CertifiedCurve:
    """The curve of a spec, at its initial values but for `values`."""
    return CertifiedCurve(derive(spec), {**spec.initial_values(), **values})


def stated(formula: str, integral: str = "") -> Spec:
    """One gradient on the whole line."""
    piece = Piece(where="all x", formula=formula, integral=integral)
    return Spec(name="tried", title="Tried", pieces=(piece,), source="a test")


def golu() -> CertifiedCurve:
    """x exp(-exp(-x)), its three formulas given: what is under test is not the derivation."""

    def everywhere(formula: sympy.Expr) -> tuple[Branch, ...]:
        ends = {"low": -sympy.oo, "low_closed": False, "high": sympy.oo, "high_closed": False}
        return (Branch(**ends, formula=formula),)

    slope = gompertz(X) + X * gompertz_pdf(X)
    formulas = Formulas(
        function=everywhere(X * gompertz(X)),
        slope=everywhere(slope),
        curvature=everywhere(sympy.factor(sympy.diff(slope, X))),
        parameter_slopes=(),
        mixed=(),
        parameter_curvatures=(),
    )
    spec = stated("x*gompertz_pdf(x) + gompertz(x)", "x*gompertz(x)")
    return CertifiedCurve(Derived(spec=spec, exact=formulas, stable=formulas), {})


@pytest.mark.parametrize(
    ("curve", "low", "high"),
    [
        (certified(SILU), -0.09983932, 1.09983932),
        (certified(GELU), -0.12890414, 1.12890415),
        (golu(), -0.11487831, 1.11339728),
        (certified(XSILU, **WIDER), -0.33977505, 1.33977505),
        (certified(XGELU, **WIDER), -0.38046580, 1.38046581),
        (certified(ATLU), 0.0, 1.0),
        (certified(RELU), 0.0, 1.0),
    ],
    ids=["silu", "gelu", "golu", "xsilu", "xgelu", "atlu", "relu"],
)
def test_the_gradient_is_bounded_on_the_whole_line(
    curve: CertifiedCurve, low: float, high: float
) -> None:
    found = bounds_of(curve, 1)
    assert found["status"] == "proved"
    assert found["low"] == pytest.approx(low, abs=1e-5)
    assert found["high"] == pytest.approx(high, abs=1e-5)
    least, most = found["attained"]
    assert found["low"] <= least <= most <= found["high"]
    assert found["high"] - most < 1e-7 and least - found["low"] < 1e-7


def test_unbounded_gradients_are_told() -> None:
    xielu = bounds_of(certified(XIELU), 1)
    assert (xielu["low"], xielu["high"]) == (-0.3, None)
    assert xielu["claim"] == "f' >= -0.3 for all x, without an upper bound"
    xiprelu = bounds_of(certified(XIPRELU), 1)
    assert (xiprelu["low"], xiprelu["high"]) == (None, None)
    assert lipschitz(xielu, jumps=False)["constant"] is None
    assert lipschitz(bounds_of(certified(RELU), 1), jumps=True)["constant"] is None
    assert lipschitz(bounds_of(certified(RELU), 1), jumps=False)["constant"] == 1.0


def test_claims_stay_true_when_they_are_shortened() -> None:
    found = bounds_of(certified(XIELU), 0)
    assert found["low"] < -0.205751062
    assert found["claim"] == "f >= -0.205752 for all x, without an upper bound"


def test_growth() -> None:
    left, right = (growth(certified(XIELU), side) for side in (-1, 1))
    assert (left["degree"], left["coefficient"]) == (1.0, 0.3)
    assert (right["degree"], right["coefficient"]) == (2.0, 0.8)
    assert growth(certified(RELU), -1)["kind"] == "zero"
    assert growth(certified(SILU), -1)["kind"] == "vanishing"
    assert growth(certified(ATLU), -1)["coefficient"] == pytest.approx(-0.31830988618)
    assert growth(certified(stated("exp(x)")), 1)["kind"] == "exponential"
    assert growth(certified(stated("cos(x)")), 1)["kind"] == "bounded"


@pytest.mark.parametrize(
    ("gradient", "claim", "logs"),
    [
        ("2*log1p(x)/(1 + x)", "f grows like (log|x|)^2 far to the right", 2.0),
        ("log1p(x)**2", "f grows like |x| (log|x|)^2 far to the right", 2.0),
        ("x*log1p(x)", "f grows like |x|^2 log|x| far to the right", 1.0),
    ],
)
def test_growth_with_a_power_of_the_logarithm(gradient: str, claim: str, logs: float) -> None:
    pieces = (Piece(where="x > 0", formula=gradient), Piece(where="x <= 0", formula="0"))
    found = growth(certified(Spec(name="tried", title="Tried", pieces=pieces, source="a test")), 1)
    assert (found["claim"], found["logs"], found["status"]) == (claim, logs, "proved")


def test_what_oscillates_is_bounded_but_has_no_sign() -> None:
    curve = certified(stated("1 + sin(2*x)"))
    found = bounds_of(curve, 1)
    assert (found["low"], found["high"]) == (0.0, 2.0)
    assert not sign_map(curve, 2, strict=False).settled


def test_what_has_no_expansion_is_not_claimed() -> None:
    curve = certified(stated("3*x**2*exp(x**3)", "exp(x**3)"))
    found = bounds_of(curve, 1)
    assert found["status"] == "not proved" and "no expansion" in found["reason"]
    assert growth(curve, 1)["status"] == "not proved"


def test_overflow() -> None:
    square = overflow_of(certified(RELU2), 0)
    assert square["status"] == "proved"
    assert square["finite_up_to"]["fp16"] == {
        "left": None,
        "right": pytest.approx(65520**0.5, rel=1e-9),
    }
    assert square["finite_up_to"]["bf16"]["right"] == pytest.approx(1.8429e19, rel=1e-4)
    assert square["finite_up_to"]["fp8_e4m3"]["right"] == pytest.approx(464**0.5, rel=1e-9)
    assert overflow_of(certified(GELU), 0)["claim"] == "f overflows in no format"
    steep = overflow_of(certified(stated("exp(x)")), 1)["finite_up_to"]["fp32"]
    assert steep == {"left": None, "right": pytest.approx(88.7228391, rel=1e-7)}


def test_a_bound_inside_a_fold() -> None:
    piece = Piece(where="all x", formula="sign(x - 1/2)", integral="abs(x - 1/2)")
    curve = certified(
        Spec(name="fold", title="Fold", pieces=(piece,), continuity="jump", source="a test")
    )
    assert [float(knot) for knot in curve.knots] == [0.5] and not curve.folded
    assert (bounds_of(curve, 1)["low"], bounds_of(curve, 1)["high"]) == (-1.0, 1.0)
    assert -0.5 - 1e-11 < bounds_of(curve, 0)["low"] <= -0.5  # rounded outward
