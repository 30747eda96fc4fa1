"""Intervals for means of few values, by Student's t distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, and where the true one lies with 95 % confidence; None where nothing can be said."""

    mean: float
    low: float | None
    high: float | None


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values: mean +- t(0.95, n - 1) s / sqrt(n).

    Edge     a single value has no interval; equal values have one of no width; the interval may
             leave the range of what is measured.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None)
    half = t_quantile(len(values) - 1) * math.sqrt(statistics.variance(values) / len(values))
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def difference_estimate(values: Sequence[float], control: Sequence[float]) -> Estimate:
    """Mean of `values` minus mean of `control`, two independent groups of unequal variance.

    Welch's interval; its degrees of freedom are rounded down, which widens it.

    Edge     no interval when a group has a single value.
    Source   Welch 1947, Biometrika 34 (1-2)
    """
    mean = statistics.fmean(values) - statistics.fmean(control)
    if len(values) < 2 or len(control) < 2:
        return Estimate(mean=mean, low=None, high=None)
    a = statistics.variance(values) / len(values)
    b = statistics.variance(control) / len(control)
    if a + b == 0:
        return Estimate(mean=mean, low=mean, high=mean)
    freedom = (a + b) ** 2 / (a**2 / (len(values) - 1) + b**2 / (len(control) - 1))
    # the rounded quotient can fall just below the whole number that it stands for
    half = t_quantile(max(math.floor(freedom * (1 + 1e-12)), 1)) * math.sqrt(a + b)
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with P(|T| <= t) = level, T having Student's distribution of `freedom` degrees.

    Checked  tests/unit/audit/test_interval.py::test_quantiles_are_those_of_the_tables
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t), a finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 if odd else 1, freedom - 1, 2):
        term *= cosine * cosine * k / (k + 1)
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
