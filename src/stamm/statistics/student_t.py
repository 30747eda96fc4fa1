"""Student's t distribution, central and noncentral, and the binomial one: probabilities, without SciPy."""

from __future__ import annotations

import functools
import math

NORMAL_80 = 0.8416
"""P(Z <= 0.8416) = 0.8 for a standard normal Z."""
_SMALLEST = 1e-300
_STEPS = 400
_POINTS = 2000  # even, as Simpson's rule requires


def t_probability(t: float, freedom: int) -> float:
    """Probability that |T| >= |t| for Student's T with `freedom` degrees of freedom.

    I_x(n/2, 1/2) with x = n / (n + t^2), the regularised incomplete beta function

    Checked  tests/unit/statistics/test_student_t.py (against mpmath)
    """
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    square = t * t
    rest = square / (freedom + square)
    return _beta(freedom / (freedom + square), rest, freedom / 2, 0.5)


def binomial_probability(successes: float, trials: int, chance: float) -> float:
    """Probability that as many of `trials` succeed, or a number as unlikely on either side: twice the tail.

    2 P(X >= k) = 2 I_p(k, n - k + 1) above the mean, 2 P(X <= k) below it, at most 1

    Edge     a k between two whole numbers is rounded towards the mean
    Checked  tests/unit/statistics/test_student_t.py (against exact sums)
    """
    if not 0 < chance < 1:
        return float(math.isclose(successes, chance * trials))
    if successes < chance * trials:
        successes, chance = trials - successes, 1 - chance
    least = math.floor(successes + 1e-9)
    if least <= chance * trials:
        return 1.0
    return min(2 * _beta(chance, 1 - chance, least, trials - least + 1), 1.0)


@functools.cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence`: 4.303 for 0.95 and 2 degrees of freedom.

    Checked  tests/unit/statistics/test_student_t.py (against printed tables)
    """
    low, high = 0.0, 1.0
    while t_probability(high, freedom) > 1 - confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_probability(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta(x: float, rest: float, a: float, b: float) -> float:
    """I_x(a, b), with `rest` = 1 - x to all its digits; Lentz's continued fraction."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(rest, x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    value, upper = 1.0, 1.0
    lower = 1 / _kept(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / _kept(1 + term * lower)
            upper = _kept(1 + term / upper)
            value *= lower * upper
        if abs(lower * upper - 1) < 1e-15:
            break
    return front * value / a


def _kept(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


def noncentral_t_power(noncentrality: float, freedom: int, critical: float) -> float:
    """Probability that |T| > `critical` for the noncentral T with this noncentrality.

    T = (Z + noncentrality) / S, with S^2 a chi-square over its `freedom`: the integral over S of
    P(|Z + noncentrality| > critical S), by Simpson's rule.

    Checked  tests/unit/statistics/test_student_t.py (against mpmath)
    """
    scales, densities, step = _chi(freedom)
    values = [
        density * (_above(critical * s - noncentrality) + _above(critical * s + noncentrality))
        for s, density in zip(scales, densities, strict=True)
    ]
    inner = 4 * math.fsum(values[1::2]) + 2 * math.fsum(values[2:-1:2])
    return min(step / 3 * (values[0] + inner + values[-1]), 1.0)


def chi_quantile(probability: float, freedom: int) -> float:
    """The s with P(S < s) = `probability`, for S^2 a chi-square over its `freedom`.

    The standard deviation behind n normal values whose own is d lies between d / chi_quantile(0.975,
    n - 1) and d / chi_quantile(0.025, n - 1) with probability 0.95.

    Checked  tests/unit/statistics/test_student_t.py (against printed tables)
    """
    scales, densities, step = _chi(freedom)
    reached = 0.0
    for s, low, high in zip(scales, densities, densities[1:], strict=False):
        area = step * (low + high) / 2
        if reached + area >= probability:
            return s + step * (probability - reached) / area
        reached += area
    return scales[-1]


@functools.cache
def _chi(freedom: int) -> tuple[list[float], list[float], float]:
    """Points of S, the density there, and their distance; beyond them lies less than 1e-12."""
    reach = 9 / math.sqrt(2 * freedom)
    low = max(1 - reach, 0.0)
    step = (1 + reach - low) / _POINTS
    front = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    scales = [low + step * i for i in range(_POINTS + 1)]
    densities = [
        math.exp(front + (freedom - 1) * math.log(s) - freedom * s * s / 2)
        if s > 0
        else math.exp(front) * (freedom == 1)
        for s in scales
    ]
    return scales, densities, step


def _above(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2
