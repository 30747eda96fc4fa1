"""Power of a comparison before it runs: the difference it can show, and the seeds a difference needs.

Paired differences over seeds are taken to be normal, so the t statistic has the noncentral t
distribution. Power is that of Holm's first step, which the clearest difference must pass, at the last
planned look: earlier looks can only increase it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stamm.statistics.sequential import nominal_levels, shares_of
from stamm.statistics.student_t import chi_quantile, noncentral_t_power, t_quantile

POWER = 0.8
MOST_SEEDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Standard deviation of the paired difference over seeds, in bits per byte.

    low, high   its 95 % interval
    seeds       behind each difference
    arms        whose differences were pooled
    """

    value: float
    low: float
    high: float
    seeds: int
    arms: tuple[str, ...]


def pooled_spread(
    bits: Mapping[str, Mapping[int, float]], baseline: str, wanted: Sequence[str]
) -> Spread | None:
    """The spread of a pilot: root mean square of the standard deviations of its differences.

    bits     held-out bits per byte by seed, by arm
    wanted   arms to take where the pilot has them; else all of it are taken

    Edge     None without two seeds of two arms. Arms share the baseline's noise, so the interval has
             the degrees of freedom of one difference
    """
    base = bits.get(baseline, {})
    pairs = {
        name: [values[seed] - base[seed] for seed in sorted(values) if seed in base]
        for name, values in bits.items()
        if name != baseline
    }
    pairs = {
        name: values
        for name, values in pairs.items()
        if len(values) > 1 and all(map(math.isfinite, values))
    }
    chosen = {name: values for name, values in pairs.items() if name in wanted} or pairs
    if not chosen:
        return None
    seeds = min(len(values) for values in chosen.values())
    value = math.sqrt(statistics.fmean(statistics.variance(v) for v in chosen.values()))
    return Spread(
        value=value,
        low=value / chi_quantile(0.975, seeds - 1),
        high=value / chi_quantile(0.025, seeds - 1),
        seeds=seeds,
        arms=tuple(chosen),
    )


def detectable(looks: Sequence[int], comparisons: int, confidence: float) -> float:
    """The difference shown with power 0.8, in standard deviations of the paired difference.

    looks   seeds at each look; the last is the plan's number of seeds

    Checked  tests/unit/statistics/test_power.py (against simulation)
    """
    critical, seeds = _critical(looks, comparisons, confidence), looks[-1]
    low, high = 0.0, 1.0
    while noncentral_t_power(high, seeds - 1, critical) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if noncentral_t_power(middle, seeds - 1, critical) < POWER:
            low = middle
        else:
            high = middle
    return high / math.sqrt(seeds)


def smallest_shown(
    looks: Sequence[int], comparisons: int, confidence: float, look: int = -1
) -> float:
    """The mean difference that Holm's first step shows at `look`, in standard deviations."""
    return _critical(looks, comparisons, confidence, look) / math.sqrt(looks[look])


def seeds_needed(
    effect: float, looks: Sequence[int], comparisons: int, confidence: float
) -> int | None:
    """Seeds that show a difference of `effect` standard deviations with power 0.8.

    Looks keep their shares of all seeds.

    Edge     None above 10,000
    """
    level = nominal_levels(shares_of(looks), (1 - confidence) / comparisons)[-1]

    def shows(seeds: int) -> bool:
        critical = t_quantile(1 - level, seeds - 1)
        return noncentral_t_power(effect * math.sqrt(seeds), seeds - 1, critical) >= POWER

    if not shows(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _critical(looks: Sequence[int], comparisons: int, confidence: float, look: int = -1) -> float:
    level = nominal_levels(shares_of(looks), (1 - confidence) / comparisons)[look]
    return t_quantile(1 - level, looks[look] - 1)
