"""Derivation: the integral is the integral, and its forms keep their digits."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import pytest
import sympy
import torch

from stamm.activations.catalog import XIELU, family
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.reference import evaluate
from stamm.activations.derivation.derive import derive, exact_formulas
from stamm.activations.derivation.formulas import Branches, Formulas, bounds, elementary, number
from stamm.activations.derivation.primitives import PRIMITIVES, Primitive, X
from stamm.activations.derivation.stable_forms import lost_bits, sample_points
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.unit.activations.truths import parameter_truth, truth

CORE = family("core")  # the other families have tests of their own, against published formulas
POINTS = [-40.0, -3.0, -1.0, -0.7, -1e-3, -1e-7, 0.0, 1e-7, 1e-3, 0.7, 1.0, 3.0, 40.0]
VALUES = {"alpha_p": 0.8, "alpha_n": 0.9, "beta": 0.5, "alpha": 0.3}


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda p: p.__name__)
def test_a_primitive_equals_its_definition_and_its_slope(primitive: type[Primitive]) -> None:
    with mpmath.workdps(60):
        for point in (-30.0, -2.0, -0.3, 1e-9, 0.6, 25.0):
            at = {"x": mpmath.mpf(point)}
            value, defined = number(primitive(X), at), number(elementary(primitive(X)), at)
            assert abs(value - defined) < mpmath.mpf(10) ** -50
            slope = number(sympy.diff(primitive(X), X), at)
            stepped = mpmath.diff(lambda u: number(primitive(X), {"x": u}), point)
            assert abs(slope - stepped) < mpmath.mpf(10) ** -20


@pytest.mark.parametrize("spec", CORE, ids=lambda s: s.name)
def test_the_slope_of_the_function_is_the_stated_gradient(spec: Spec) -> None:
    derived = derive(spec)
    with mpmath.workdps(120):
        step = mpmath.mpf(10) ** -30
        for point in (p for p in POINTS if p != 0.0):
            below, above = truth(derived, "function", [point - step, point + step], VALUES)
            (stated,) = truth(derived, "slope", [point], VALUES)
            assert abs((above - below) / (2 * step) - stated) < mpmath.mpf(10) ** -25


@pytest.mark.parametrize("spec", CORE, ids=lambda s: s.name)
def test_stable_forms_are_the_same_functions(spec: Spec) -> None:
    derived = derive(spec)
    for exact, stable in zip(_all(derived.exact), _all(derived.stable), strict=True):
        for a, b in zip(
            evaluate(exact, POINTS, VALUES), evaluate(stable, POINTS, VALUES), strict=True
        ):
            assert abs(a - b) < mpmath.mpf(10) ** -60


@pytest.mark.parametrize("spec", CORE, ids=lambda s: s.name)
def test_no_form_loses_digits(spec: Spec) -> None:
    derived = derive(spec)
    samples = spec.sample_values()
    for branches in _all(derived.stable):
        for branch in branches:
            with mpmath.workdps(40):
                points = sample_points(*bounds(branch, samples[0]))
                bits = lost_bits([branch.formula], points, samples)[0]
            # Five bits of room: some points lie near a root, where no form can do better.
            assert max(bits, default=0.0) < 5.0, branch.formula


def test_xielu_is_what_the_paper_says() -> None:
    derived = derive(XIELU)
    with mpmath.workdps(50):
        for point in POINTS:
            x = mpmath.mpf(point)
            if x > 0:
                expected = mpmath.mpf(0.8) * x**2 + mpmath.mpf(0.5) * x
            else:
                expected = mpmath.mpf(0.9) * (mpmath.exp(x) - 1 - x) + mpmath.mpf(0.5) * x
            (found,) = truth(derived, "function", [point], VALUES)
            assert abs(found - expected) < mpmath.mpf(10) ** -45
    near = [b.formula for b in derived.stable.function if b.formula.has(X) and "phi2" in str(b)]
    assert [str(f) for f in near] == ["alpha_n*phi2(x) + beta*x"]


def test_a_knot_that_depends_on_a_parameter() -> None:
    # f' = x below the knee and knee above: Leibniz with a moving knot gives df/dknee = x - knee.
    pieces = ["x <= knee: x", "x > knee: knee"]
    spec = spec_from_arguments(pieces, ["knee=2:softplus"], name="huber")
    derived = derive(spec)
    found = parameter_truth(derived, "knee", [-1.0, 1.5, 2.0, 5.0], {"knee": 2.0})
    assert [float(v) for v in found] == [0.0, 0.0, 0.0, 3.0]
    assert [float(v) for v in truth(derived, "function", [1.0, 5.0], {"knee": 2.0})] == [0.5, 8.0]


def test_a_jump_at_a_moving_knot() -> None:
    # f = max(0, x - k): df/dk = -1 beyond the knot, from the jump alone.
    pieces = ["x <= k: 0", "x > k: 1"]
    spec = spec_from_arguments(pieces, ["k=1:softplus"], name="relu_at_k", continuity="jump")
    found = parameter_truth(derive(spec), "k", [0.5, 3.0], {"k": 1.0})
    assert [float(v) for v in found] == [0.0, -1.0]


@pytest.mark.parametrize("gradient", ["log(1 + exp(a*x))", "tanh(a*x)", "atan(a*x)"])
def test_a_scale_inside_a_gradient_may_be_trained(gradient: str) -> None:
    # d2f/da2 holds differences and ratios of powers of x, which are NaN where squares overflow.
    spec = scaled(gradient)
    true = evaluate(derive(spec).exact.parameter_curvatures[0][0], POINTS, {"a": 1.3})
    a, x = torch.tensor(1.3, dtype=torch.float64), torch.tensor(POINTS, dtype=torch.float64)
    found = kernel_of(spec).curvatures(x, (a,))[-1]
    assert found.tolist() == pytest.approx([float(v) for v in true], rel=1e-9, abs=1e-12)
    far = kernel_of(spec).curvatures(torch.tensor([-1e100, 1e100], dtype=torch.float64), (a,))
    assert not any(torch.isnan(row).any() for row in far)


def test_a_form_that_breaks_far_out_is_refused() -> None:
    # The knots move, so that they cannot be ordered against a cut far out.
    pieces = (Piece(where="x > a", formula="x**2/(1 + x**4)"), Piece(where="x <= a", formula="0"))
    with pytest.raises(ConfigError, match=r"no form of .* survives x = 1.4e\+154.*Write it in 1/x"):
        derive(replace(scaled("0"), pieces=pieces, continuity="jump"))


def scaled(gradient: str) -> Spec:
    return spec_from_arguments([f"all x: {gradient}"], ["a=1.3:softplus"], name="scaled")


def test_a_constant_of_integration_that_is_not_real_is_refused() -> None:
    pieces, parameters = ["x > k: sqrt(x - k)", "x <= k: 0"], ["k=0.5:identity"]
    with pytest.raises(
        ConfigError, match=r"\(-k\)\*\*\(3/2\), which is not a real number at k = 0\.5"
    ):
        exact_formulas(spec_from_arguments(pieces, parameters))
    anchored = exact_formulas(spec_from_arguments(pieces, parameters, anchor="k=0"))
    left, right = (branch.formula for branch in anchored.function)
    assert left == 0
    assert abs(number(right, {"k": 0.5, "x": 4.5}) - 16 / 3) < 1e-12


def test_an_anchor_away_from_zero() -> None:
    spec = spec_from_arguments(["x <= 0: exp(x)", "x > 0: 1"], name="lifted", anchor="2=5")
    found = truth(derive(spec), "function", [2.0, 0.0, -1.0], {})
    assert [float(v) for v in found] == pytest.approx([5.0, 3.0, 2.0 + mpmath.exp(-1)])


def test_an_elementary_integral_outside_the_ansatz() -> None:
    spec = spec_from_arguments(["all x: x/sqrt(1 + x**2)"], name="softsign_slope")
    found = truth(derive(spec), "function", [0.0, 3.0], {})
    assert [float(v) for v in found] == pytest.approx([0.0, 10**0.5 - 1])


def test_a_gradient_without_elementary_integral_is_refused() -> None:
    spec = spec_from_arguments(["all x: sin(x)/(1 + x**2)"], name="hard")
    with pytest.raises(ConfigError, match=r"no antiderivative of piece 'all x' could be found"):
        derive(spec)


@pytest.mark.parametrize("right", ["1/x", "1/x**2"])
def test_a_gradient_whose_integral_is_infinite_at_a_knot_is_refused(right: str) -> None:
    spec = spec_from_arguments([f"x > 0: {right}", "x <= 0: 0"], continuity="singular")
    with pytest.raises(ConfigError, match="piece 'x > 0' has no finite value at x = 0"):
        derive(spec)


def _all(formulas: Formulas) -> list[Branches]:
    return [
        formulas.function,
        formulas.slope,
        formulas.curvature,
        *formulas.parameter_slopes,
        *formulas.mixed,
        *(branches for row in formulas.parameter_curvatures for branches in row),
    ]
