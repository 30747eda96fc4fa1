"""Differences of several comparisons, of other sizes or lengths, with a fitted trend.

The trend is the least-squares slope over log10(size): a sum of means with fixed weights. Runs of one
seed share their text and its order, so comparisons that have a seed in common are not independent,
and their covariance is part of the slope's standard error. Nothing is extrapolated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.units import count_text
from stamm.compare.verdict import at_last_look, judged
from stamm.pages.formatting import ABSENT, fixed, percent, signed
from stamm.pages.text import one_line
from stamm.statistics.student_t import t_quantile

COLUMNS = (
    "comparison", "arm", "parameters", "tokens", "seeds", "difference", "standard error", "tokens to equal loss",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """The difference of an arm to the baseline in one comparison, in bits per byte.

    by_seed        difference of each seed, two or more
    tokens_ratio   tokens that it needs for the baseline's loss, as a share; None where unknown
    """

    comparison: str
    exploratory: bool
    arm: str
    parameters: int
    tokens: float
    by_seed: Mapping[int, float]
    tokens_ratio: float | None

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return statistics.stdev(self.by_seed.values()) / math.sqrt(self.seeds)

    def cells(self) -> tuple[str, ...]:
        """The texts of one line of a table."""
        return (
            one_line(self.comparison, 40) + " (exploratory)" * self.exploratory,
            one_line(self.arm, 40),
            count_text(self.parameters),
            count_text(self.tokens),
            str(self.seeds),
            signed(self.mean, 4),
            fixed(self.error, 4),
            ABSENT if self.tokens_ratio is None else percent(self.tokens_ratio, 0),
        )


def size_points(folders: Sequence[Path]) -> list[SizePoint]:
    """The differences in these run folders, arms of less than two seeds left out.

    Seeds count up to the last planned look; a baseline that diverged leaves nothing to compare with.

    Raises   RunError when one is not a comparison's, no arm has two finished seeds, or they differ in
             the baseline
    """
    points, baselines = [], []
    for folder in folders:
        compared, verdict = judged(folder)
        baselines.append(verdict.baseline)
        if any(line.diverged for line in verdict.lines if line.name == verdict.baseline):
            continue
        compared, _ = at_last_look(compared, compared.finished())
        for line in verdict.lines:
            pairs = compared.by_seed(line.name)
            if line.name == verdict.baseline or line.diverged or len(pairs) < 2:
                continue
            ratio = line.log_tokens
            points.append(
                SizePoint(
                    comparison=folder.name,
                    exploratory=verdict.exploratory,
                    arm=line.name,
                    parameters=line.parameters or 0,
                    tokens=line.tokens or 0.0,
                    by_seed=pairs,
                    tokens_ratio=math.exp(ratio.mean) if ratio else None,
                )
            )
    if len(set(baselines)) > 1:
        raise RunError(
            f"{', '.join(map(str, folders))} differ in the baseline: {', '.join(baselines)}",
            fix="Name comparisons with the same one",
        )
    if not points:
        raise RunError(
            f"no arm of {', '.join(map(str, folders))} has two finished seeds",
            fix="`stamm compare` with its recipe resumes it",
        )
    return points


def trends(points: Sequence[SizePoint]) -> list[str]:
    """A sentence for each arm that has two sizes: the slope with its 95 % interval.

    Checked  tests/unit/compare/test_comparison_sizes.py (coverage, simulated)
    """
    said = []
    for arm in dict.fromkeys(point.arm for point in points):
        mine = [point for point in points if point.arm == arm and point.parameters and point.tokens]
        size = "parameters" if len({point.parameters for point in mine}) > 1 else "tokens"
        places = [math.log10(getattr(point, size)) for point in mine]
        if len(set(places)) > 1:
            slope, half = slope_of(places, mine)
            said.append(
                f"{one_line(arm, 40)}: {signed(slope, 4)} ± {fixed(half, 4)} bits per byte for ten times "
                f"the {size} (95 %), fitted from {len(mine)} comparisons."
            )
    return said


def slope_of(places: Sequence[float], points: Sequence[SizePoint]) -> tuple[float, float]:
    """The least-squares slope of the means over `places`, and half of its 95 % interval.

    With w_k the weights of the slope, n_k the seeds of comparison k and e_ks the residual of seed s, the
    variance is sum_s u_s^2, u_s = sum_k w_k sqrt(n_k / (n_k - 1)) e_ks / n_k: that of slopes seed by seed
    where all comparisons have the same seeds, and of independent means where they share none. Degrees
    of freedom are Satterthwaite's, over groups of seeds that are in the same comparisons.
    """
    middle = statistics.fmean(places)
    squares = math.fsum((position - middle) ** 2 for position in places)
    slope, parts = 0.0, dict[int, float]()
    within = dict[int, tuple[int, ...]]()
    for number, (position, point) in enumerate(zip(places, points, strict=True)):
        weight, n = (position - middle) / squares, point.seeds
        slope += weight * point.mean
        for seed, value in point.by_seed.items():
            part = weight * math.sqrt(n / (n - 1)) * (value - point.mean) / n
            parts[seed] = parts.get(seed, 0.0) + part
            within[seed] = (*within.get(seed, ()), number)
    variance = math.fsum(part * part for part in parts.values())
    spread = 0.0
    for group in set(within.values()):
        own = [parts[seed] ** 2 for seed, seeds in within.items() if seeds == group]
        spread += math.fsum(own) ** 2 / max(len(own) - 1, 1)
    freedom = max(int(variance**2 / spread + 1e-9), 1) if spread else 1
    return slope, t_quantile(0.95, freedom) * math.sqrt(variance)
