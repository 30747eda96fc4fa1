"""Polynomials: the error they promise is the error they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest

from stamm.activations.derivation.approximate import (
    DOUBLE,
    SINGLE,
    arctan_remainder,
    dilogarithm_remainder,
    error_complement,
    exponential_integral_far,
    exponential_integral_middle,
    exponential_integral_near,
    exponential_remainder,
    fit,
    log_cosh_quotient,
)
from stamm.base.errors import ConfigError


@pytest.mark.parametrize("target", [SINGLE, DOUBLE])
@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (exponential_remainder, -1.0, 0.0),
        (exponential_remainder, 0.0, 1.0),
        (arctan_remainder, 0.0, 1.0),
        (dilogarithm_remainder, 0.0, 1.8),
        (log_cosh_quotient, 0.0, 1.0),
        (exponential_integral_near, 0.0, 0.5),
        (exponential_integral_middle, -2.1, 0.7),
        (exponential_integral_far, 0.0, 0.125),
        (error_complement, -1.0, 1.0),
    ],
)
def test_the_error_is_below_the_target(
    function: Callable[[Any], Any], low: float, high: float, target: float
) -> None:
    polynomial = fit(function, low, high, target)
    with mpmath.workdps(50):
        for i in range(257):
            point = mpmath.mpf(low) + (high - low) * mpmath.mpf(i) / 256
            found = mpmath.polyval(polynomial.coefficients[::-1], point)
            # Each coefficient is rounded to a double: that comes on top, term by term.
            terms = sum(abs(c * point**k) for k, c in enumerate(polynomial.coefficients))
            exact = function(point)
            assert abs(found - exact) <= target * exact + 2.0**-53 * terms


def test_the_degree_is_the_least() -> None:
    assert len(fit(exponential_remainder, -1.0, 0.0, SINGLE).coefficients) == 6


def test_an_impossible_target_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no polynomial of degree 40 is within 1e-30"):
        fit(lambda u: mpmath.sqrt(u + mpmath.mpf("1e-9")), 0.0, 1.0, 1e-30)
