"""Means and shares of few values with their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from stamm.base.schema import FieldError
from stamm.statistics.student_t import t_quantile

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """A mean and its 95 % confidence interval; None where a single value gives no interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is not None and self.low > self.mean:
            raise FieldError("low", f"at most the mean, {self.mean}")
        if self.high is not None and self.high < self.mean:
            raise FieldError("high", f"at least the mean, {self.mean}")


def mean_estimate(values: Sequence[float]) -> MeanInterval:
    """Mean of independent values with its confidence interval, mean +- t(0.95, n - 1) s / sqrt(n).

    Edge     a single value has no interval; that of equal values has width 0; the interval may
             exceed the range of the measure.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return MeanInterval(mean=mean, low=None, high=None)
    half = t_quantile(LEVEL, len(values) - 1) * math.sqrt(statistics.variance(values) / len(values))
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


def difference_estimate(values: Sequence[float], control: Sequence[float]) -> MeanInterval:
    """Mean of `values` minus mean of `control`, two independent groups of unequal variance.

    Welch's interval; its degrees of freedom are rounded down, which widens it.

    Edge     no interval when a group has a single value.
    Source   Welch 1947, Biometrika 34 (1-2)
    """
    mean = statistics.fmean(values) - statistics.fmean(control)
    if len(values) < 2 or len(control) < 2:
        return MeanInterval(mean=mean, low=None, high=None)
    a = statistics.variance(values) / len(values)
    b = statistics.variance(control) / len(control)
    if a + b == 0:
        return MeanInterval(mean=mean, low=mean, high=mean)
    freedom = (a + b) ** 2 / (a**2 / (len(values) - 1) + b**2 / (len(control) - 1))
    # rounding can put the quotient just below a whole number
    half = t_quantile(LEVEL, max(math.floor(freedom * (1 + 1e-12)), 1)) * math.sqrt(a + b)
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


def share_estimate(values: Sequence[float]) -> MeanInterval:
    """Share of ones among independent values of 0 and 1, with its Wilson interval.

    Source   Wilson 1927, Journal of the American Statistical Association 22
    """
    count, z = len(values), NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = statistics.fmean(values)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return MeanInterval(mean=share, low=min(low, share), high=max(high, share))
