"""Student's t distribution: two-sided probabilities and quantiles, without SciPy."""

from __future__ import annotations

import functools
import math

_SMALLEST = 1e-300
_STEPS = 400


def t_probability(t: float, freedom: int) -> float:
    """Probability that |T| >= |t| for Student's T with `freedom` degrees of freedom.

    I_x(n/2, 1/2) with x = n / (n + t^2), the regularised incomplete beta function

    Checked  tests/unit/base/test_student_t.py (against mpmath)
    """
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    square = t * t
    rest = square / (freedom + square)
    return _beta(freedom / (freedom + square), rest, freedom / 2, 0.5)


@functools.cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence`: 4.303 for 0.95 and 2 degrees of freedom.

    Checked  tests/unit/base/test_student_t.py (against printed tables)
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
