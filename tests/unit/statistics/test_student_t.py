"""Student's t distribution against mpmath and printed tables."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest

from stamm.statistics.student_t import (
    binomial_probability,
    chi_quantile,
    noncentral_t_power,
    t_probability,
    t_quantile,
)

# Two-sided 95 % points of Student's t, from the tables every textbook prints.
TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    10: 2.228,
    29: 2.045,
    30: 2.042,
    120: 1.980,
}


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 200])
@pytest.mark.parametrize("t", [1e-9, 0.1, 0.7, 1.0, 2.5, 12.0, 400.0])
def test_students_t_against_mpmath(freedom: int, t: float) -> None:
    with mpmath.workdps(40):
        x = mpmath.mpf(freedom) / (freedom + mpmath.mpf(t) ** 2)
        exact = mpmath.betainc(mpmath.mpf(freedom) / 2, mpmath.mpf("0.5"), 0, x, regularized=True)
    assert t_probability(t, freedom) == pytest.approx(float(exact), rel=1e-10)
    assert t_probability(-t, freedom) == t_probability(t, freedom)


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 2, 9.925), (0.95, 4, 2.776), (0.95, 120, 1.980)],
)
def test_quantiles_of_the_printed_tables(confidence: float, freedom: int, table: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_tables(freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(TABLE[freedom], abs=5.1e-4)


def test_the_quantile_tends_to_the_normal_one() -> None:
    assert 1.959964 < t_quantile(0.95, 5000) < 1.961


@pytest.mark.parametrize(
    ("noncentrality", "freedom", "critical"),
    [
        (0.0, 2, 4.303),
        (2.5, 3, 3.182),
        (4.0, 7, 5.2),
        (3.1, 30, 2.042),
        (1.0, 1, 12.706),
        (8.0, 120, 2.0),
    ],
)
def test_power_of_the_noncentral_t_against_mpmath(
    noncentrality: float, freedom: int, critical: float
) -> None:
    """P(|T| > c) as the integral over the chi-square below it, which is another one than ours."""

    def inner(v: mpmath.mpf) -> mpmath.mpf:
        scale = critical * mpmath.sqrt(v / freedom)
        above = mpmath.erfc((scale - noncentrality) / mpmath.sqrt(2))
        above += mpmath.erfc((scale + noncentrality) / mpmath.sqrt(2))
        density = v ** (mpmath.mpf(freedom) / 2 - 1) * mpmath.exp(-v / 2)
        return above / 2 * density / (2 ** (mpmath.mpf(freedom) / 2) * mpmath.gamma(freedom / 2))

    cuts = [0, 0.01, freedom / 2, freedom, 2 * freedom, 4 * freedom + 20, 8 * freedom + 80]
    exact = mpmath.quad(inner, cuts)
    assert noncentral_t_power(noncentrality, freedom, critical) == pytest.approx(
        float(exact), abs=1e-8
    )


def test_power_without_an_effect_is_the_level() -> None:
    for freedom in (1, 2, 7, 40):
        critical = t_quantile(0.95, freedom)
        assert noncentral_t_power(0.0, freedom, critical) == pytest.approx(0.05, abs=1e-7)


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    # chi-square tables: 0.0506 and 7.378 with 2 degrees, 20.48 with 10
    [
        (0.025, 2, (0.050636 / 2) ** 0.5),
        (0.975, 2, (7.37776 / 2) ** 0.5),
        (0.975, 10, (20.4832 / 10) ** 0.5),
    ],
)
def test_the_quantiles_of_a_standard_deviation(
    probability: float, freedom: int, table: float
) -> None:
    assert chi_quantile(probability, freedom) == pytest.approx(table, rel=2e-4)


@pytest.mark.parametrize("trials", [1, 4, 20, 100])
@pytest.mark.parametrize("chance", [0.25, 0.5, 0.1])
def test_binomial_probabilities_are_twice_the_tail(trials: int, chance: float) -> None:
    success = Fraction(chance)
    of = [
        math.comb(trials, k) * success**k * (1 - success) ** (trials - k) for k in range(trials + 1)
    ]
    for share in (0.0, 0.1, 0.3, 0.5, 0.51, 0.8, 1.0):
        successes = round(share * trials)
        expected = float(min(1, 2 * min(sum(of[successes:]), sum(of[: successes + 1]))))
        found = binomial_probability(successes, trials, chance)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert binomial_probability(3.5, 4, 0.5) == binomial_probability(3, 4, 0.5)
