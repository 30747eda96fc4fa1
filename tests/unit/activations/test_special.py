"""Integrals of primitives: their identities, their tails, and what a machine makes of them."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch

from stamm.activations import primitives
from stamm.activations.derivation import special
from stamm.activations.derivation.primitives import Primitive
from tests.unit.activations.truths import apa_integral

NAMES = (
    "softplus_integral",
    "logistic_moment",
    "gompertz_integral",
    "gompertz_upper_integral",
    "log_cosh",
    "mish_gate_integral",
)


def _value(name: str, u: float) -> Any:
    made: type[Primitive] = getattr(special, name)
    return made.value(mpmath.mpf(u))


def _condition(name: str, u: float) -> float:
    """How much a relative error in what the kernel must compute first grows in the result."""
    if name == "gompertz_integral" and u < 0:
        # exp(-exp(-u)), whose argument is rounded; beyond all exponents it is 0
        return 1 + min(float(mpmath.exp(-u)), 1e300)
    if name == "logistic_moment" and 1 < u < 2:
        return 1 + 1 / abs(float(_value(name, u)))  # it crosses 0
    return 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_is_right_to_two_units(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    size = 10 ** (torch.rand(150, generator=generator, dtype=torch.float64) * 12 - 8)
    points = torch.cat([size, -size, torch.linspace(-12, 12, 241, dtype=torch.float64)]).to(dtype)
    limits = torch.finfo(dtype)
    found = getattr(primitives, name)(points)
    assert found.dtype == dtype
    with mpmath.workdps(40):
        for u, y in zip(points.tolist(), found.tolist(), strict=True):
            exact = _value(name, u)
            unit = 2 * limits.eps * abs(exact) * _condition(name, u)
            assert abs(y - exact) <= max(unit, 8 * limits.tiny), u


@pytest.mark.parametrize("name", NAMES)
def test_far_out_there_is_no_nan_but_for_nan(name: str) -> None:
    far = torch.tensor([-1e30, -1e4, -0.0, 0.0, 1e4, 1e30, float("nan")])
    found = getattr(primitives, name)(far)
    assert torch.isnan(found).tolist() == [False] * 6 + [True]
    assert found[2] == found[3] == pytest.approx(float(_value(name, 0.0)))
    assert not mpmath.isnan(_value(name, float("-inf")))
    falling = name == "gompertz_upper_integral"
    assert _value(name, float("inf")) == (0 if falling else mpmath.inf)


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_the_integral_of_the_slope(name: str) -> None:
    made: type[Primitive] = getattr(special, name)
    with mpmath.workdps(30):
        for u in (-40.0, -2.5, -0.25, 0.5, 1.75, 30.0):
            slope = made.slope(special.sympy.Float(u, 40)).evalf(30)
            assert abs(mpmath.diff(made.value, u) - slope._to_mpmath(100)) < 1e-12 * (
                1 + abs(slope)
            )


def test_the_softplus_integral_reflects_at_zero() -> None:
    with mpmath.workdps(50):
        for u in (0.0, 0.3, 4.0, 300.0):
            both = _value("softplus_integral", u) + _value("softplus_integral", -u)
            assert abs(both - mpmath.pi**2 / 6 - mpmath.mpf(u) ** 2 / 2) < mpmath.mpf(10) ** -44
        direct = -mpmath.polylog(2, -mpmath.exp(mpmath.mpf(-3)))
        assert abs(_value("softplus_integral", -3.0) - direct) < mpmath.mpf(10) ** -48


def test_constants_are_named_by_their_closed_forms() -> None:
    pi = special.sympy.pi
    assert special.softplus_integral.definition(special.sympy.S.Zero) == pi**2 / 12
    assert special.logistic_moment.definition(special.sympy.S.Zero) == -(pi**2) / 12


def test_the_apa_integral_is_softplus_at_shape_one() -> None:
    with mpmath.workdps(30):
        for u in (-3.0, 0.0, 2.5):
            difference = apa_integral(mpmath.mpf(u), 1) - mpmath.log1p(mpmath.exp(u))
            assert abs(difference) < 1e-25
