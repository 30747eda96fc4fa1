"""Statistics over seeds: confidence interval by Student's t, paired differences, Holm's correction.

A difference is taken seed by seed: two arms of one seed saw the same text in the same order and
began with the same shared weights, so what a seed does to both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stamm.statistics.sequential import nominal_levels, sequential_p
from stamm.statistics.student_t import t_probability, t_quantile


@dataclass(frozen=True, kw_only=True)
class ConfidenceInterval:
    """A mean with its confidence interval.

    low, high   of the t interval; None from fewer than two values
    count       values behind it
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        """From the mean to an end; None where there is no interval."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm against the baseline, over the seeds that both have.

    interval    of the mean difference; all intervals together cover the truth with the family's
                confidence. One that excludes 0 belongs to a shown difference; a difference other than
                the clearest may be shown, and its interval hold 0
    p_value     two-sided, of the paired t test; None from fewer than two seeds
    adjusted    the same after Holm's correction, and that for several looks
    shown       whether the difference is shown at the family's confidence
    """

    name: str
    interval: ConfidenceInterval
    p_value: float | None
    adjusted: float | None
    shown: bool


def interval(values: Sequence[float], confidence: float) -> ConfidenceInterval:
    """The mean of independent values with its t interval: mean +- t s / sqrt(n).

    Edge     a value that is not finite makes the mean so, and there is no interval
    """
    count = len(values)
    if not all(map(math.isfinite, values)):
        # fsum refuses infinities of both signs: two arms may have diverged, with different seeds.
        return ConfidenceInterval(mean=sum(values) / count, low=None, high=None, count=count)
    mean = math.fsum(values) / count
    if count < 2:
        return ConfidenceInterval(mean=mean, low=None, high=None, count=count)
    error = statistics.stdev(values) / math.sqrt(count)
    reach = t_quantile(confidence, count - 1) * error
    return ConfidenceInterval(mean=mean, low=mean - reach, high=mean + reach, count=count)


def differences(
    arms: Mapping[str, Mapping[int, float]],
    baseline: str,
    confidence: float,
    shares: tuple[float, ...] = (1.0,),
    look: int = 0,
) -> tuple[Difference, ...]:
    """Every other arm against the baseline, lower meaning less, in the order of `arms`.

    arms     values by seed, by name of the arm
    shares   of the planned seeds at each look of a group-sequential plan; `look` is this one

    The k hypotheses "no difference" are ordered by p; the i-th (from 0) is rejected while
    p_i <= the nominal level of this look in a test at (1 - confidence) / (k - i), up to the first
    that is not. So the chance that any difference is shown where there is none is at most
    1 - confidence over all looks, whatever the correlation between arms.

    Every interval has the level (1 - confidence) / k (Bonferroni), at which all k cover the truth together
    with the chance `confidence` at least. Intervals at the level of the rank in Holm's order do not:
    where all of seven arms differ, all cover it with .91 instead of .95.

    Edge     an arm with a value that is not finite, or fewer than two seeds in common with the
             baseline, has no p and is not shown; it counts among the k all the same
    Source   Holm 1979, Scandinavian Journal of Statistics 6
    Checked  tests/unit/statistics/test_intervals.py (2,000 simulations of each claim)
    """
    base = arms[baseline]
    paired = {
        name: [values[seed] - base[seed] for seed in sorted(values) if seed in base]
        for name, values in arms.items()
        if name != baseline
    }
    chances = {name: _chance(values) for name, values in paired.items() if values}
    # A difference without a p is last.
    ordered = sorted(chances, key=lambda name: _of(chances[name]))
    difference_by_name: dict[str, Difference] = {}
    rejecting, adjusted = True, 0.0
    level = nominal_levels(shares, (1 - confidence) / max(len(paired), 1))[look]
    for index, name in enumerate(ordered):
        chance, remaining = chances[name], len(paired) - index
        overall = 2.0 if chance is None else sequential_p(chance, look, shares)
        adjusted = max(adjusted, min(overall * remaining, 1.0))
        if rejecting:
            bound = nominal_levels(shares, (1 - confidence) / remaining)[look]
            rejecting = chance is not None and chance <= bound
        difference_by_name[name] = Difference(
            name=name,
            interval=interval(paired[name], 1 - level),
            p_value=chance,
            adjusted=None if chance is None else adjusted,
            shown=rejecting,
        )
    return tuple(difference_by_name[name] for name in paired if name in difference_by_name)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values after Holm's correction, by name, in the order given.

    Source   Holm 1979, Scandinavian Journal of Statistics 6
    """
    adjusted_by_name: dict[str, float] = {}
    adjusted = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        adjusted = max(adjusted, min(p_values[name] * (len(p_values) - rank), 1.0))
        adjusted_by_name[name] = adjusted
    return {name: adjusted_by_name[name] for name in p_values}


def wilson(right: float, pairs: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of a share of `pairs` independent trials; (0, 1) without any.

    Source   Wilson 1927, Journal of the American Statistical Association 22
    """
    if pairs == 0:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / pairs
    scale = 1 + z * z / pairs
    centre = (share + z * z / (2 * pairs)) / scale
    reach = z / scale * math.sqrt(share * (1 - share) / pairs + z * z / (4 * pairs * pairs))
    # exact ends: rounding may leave the share outside
    low = 0.0 if right == 0 else centre - reach
    return low, 1.0 if right == pairs else centre + reach


def _of(chance: float | None) -> float:
    return 2.0 if chance is None else chance


def _chance(values: Sequence[float]) -> float | None:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean, error = math.fsum(values) / len(values), statistics.stdev(values)
    if error == 0:
        # Equal bits of the difference for every seed: only identical runs give that.
        return 1.0 if mean == 0 else 0.0
    return t_probability(mean * math.sqrt(len(values)) / error, len(values) - 1)
