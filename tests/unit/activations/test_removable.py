"""Quotients with a limit where their divisor is 0: a power series near 0, a table beyond."""

from __future__ import annotations

import mpmath
import pytest
import torch

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.judge import table_sentences
from stamm.activations.derivation.derive import derive
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.expressions import evaluate, parse
from stamm.base.errors import ConfigError

_QUOTIENTS = {
    "tanh(x)/x": lambda x: mpmath.tanh(x) / x,
    "x/(exp(x) - 1)": lambda x: x / mpmath.expm1(x),
    "(1 - exp(-x))/x": lambda x: -mpmath.expm1(-x) / x,
    "sin(x)/x": lambda x: mpmath.sin(x) / x,
    "log(1 + x**2)/x": lambda x: mpmath.log1p(x**2) / x,
    "(1 - cos(x))/x**2": lambda x: (1 - mpmath.cos(x)) / x**2,
    "(2*logistic(x) - 1)/atan(x)": lambda x: mpmath.tanh(x / 2) / mpmath.atan(x),
}


@pytest.mark.parametrize("stated", _QUOTIENTS)
def test_a_quotient_is_its_power_series_near_0(stated: str) -> None:
    spec = spec_from_arguments([stated], name="quotient")
    near = spec.pieces[1]
    assert [p.where for p in spec.pieces] == ["x < -1/4", "-1/4 <= x <= 1/4", "x > 1/4"]
    assert "/x" not in near.formula and spec.pieces[0].formula == stated
    for x in (-0.25, -0.1, -1e-6, 1e-9, 0.125, 0.25):
        with mpmath.workdps(40):
            true = float(_QUOTIENTS[stated](mpmath.mpf(x)))
        assert evaluate(parse(near.formula), {"x": x}) == pytest.approx(true, rel=4e-16)


def test_a_piece_that_begins_at_0_is_split_on_its_side() -> None:
    spec = spec_from_arguments(["x > 0: (1 - exp(-x))/x", "x <= 0: 1"], name="quotient")
    assert [p.where for p in spec.pieces] == ["0 < x <= 1/4", "x > 1/4", "x <= 0"]


@pytest.mark.parametrize("pole", ["1/x", "cos(x)/x", "sin(x)/x**2", "tanh(x)/abs(x)"])
def test_a_pole_is_refused(pole: str) -> None:
    with pytest.raises(ConfigError, match="has a pole at x = 0"):
        spec_from_arguments([pole], name="quotient")


@pytest.mark.parametrize("quotient", ["erf(x)/x", "tanh(a*x)/x"])
def test_a_quotient_without_a_known_series_is_named(quotient: str) -> None:
    parameters = ["a=1:softplus"] if "a*" in quotient else []
    with pytest.raises(ConfigError, match="no value at x = 0: x and what it divides are 0 there"):
        spec_from_arguments([quotient], parameters, name="quotient")


@pytest.mark.sweep
def test_the_integral_of_a_quotient() -> None:
    spec = spec_from_arguments(["x/(exp(x) - 1)"], name="quotient")
    x = [-50.0, -3.0, -0.3, 0.1, 0.25, 0.26, 3.0, 50.0, 1e4]
    found = kernel_of(spec).value(torch.tensor(x, dtype=torch.float64), ()).tolist()
    for at, value in zip(x, found, strict=True):
        stops = [0, *(at * k / 64 for k in (1, 4, 16, 32)), at]
        true = mpmath.quad(_QUOTIENTS["x/(exp(x) - 1)"], stops)
        assert value == pytest.approx(float(true), rel=1e-12)
    # Constants of integration read the same tables, at -1/4 and 1/4, and are not listed.
    left, right = table_sentences(derive(spec))
    assert "for x < -1/4," in left and "for 1/4 < x," in right
