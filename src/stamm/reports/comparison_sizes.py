"""Differences of several comparisons, of other sizes or lengths, with a fitted trend.

The trend is the least-squares slope over log10(size): a sum of independent means with fixed weights, so
its standard error follows from theirs, with Satterthwaite's degrees of freedom. Nothing is extrapolated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.student_t import t_quantile
from stamm.base.units import count_text
from stamm.reports.comparison_verdict import at_last_look, judged
from stamm.reports.formatting import ABSENT, fixed, percent, signed
from stamm.reports.text import one_line

COLUMNS = (
    "comparison", "arm", "parameters", "tokens", "seeds", "difference", "standard error", "tokens to equal loss",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SizePoint:
    """The difference of an arm to the baseline in one comparison, in bits per byte.

    tokens_ratio   tokens that it needs for the baseline's loss, as a share; None where unknown
    """

    comparison: str
    exploratory: bool
    arm: str
    parameters: int
    tokens: float
    seeds: int
    mean: float
    error: float
    tokens_ratio: float | None

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
    found, baselines = [], []
    for folder in folders:
        compared, verdict = judged(folder)
        baselines.append(verdict.baseline)
        if any(line.diverged for line in verdict.lines if line.name == verdict.baseline):
            continue
        compared, _ = at_last_look(compared, compared.finished())
        for line in verdict.lines:
            pairs = compared.paired(line.name)
            if line.name == verdict.baseline or line.diverged or len(pairs) < 2:
                continue
            ratio = line.log_tokens
            found.append(
                SizePoint(
                    comparison=folder.name,
                    exploratory=verdict.exploratory,
                    arm=line.name,
                    parameters=line.parameters or 0,
                    tokens=line.tokens or 0.0,
                    seeds=len(pairs),
                    mean=statistics.fmean(pairs),
                    error=statistics.stdev(pairs) / math.sqrt(len(pairs)),
                    tokens_ratio=math.exp(ratio.mean) if ratio else None,
                )
            )
    if len(set(baselines)) > 1:
        raise RunError(
            f"{', '.join(map(str, folders))} differ in the baseline: {', '.join(baselines)}",
            fix="Name comparisons with the same one",
        )
    if not found:
        raise RunError(
            f"no arm of {', '.join(map(str, folders))} has two finished seeds",
            fix="`stamm compare` with its recipe resumes it",
        )
    return found


def trends(points: Sequence[SizePoint]) -> list[str]:
    """A sentence for each arm that has two sizes: the slope with its 95 % interval.

    Checked  tests/unit/reports/test_comparison_sizes.py (coverage, simulated)
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
    """The least-squares slope of the means over `places`, and half of its 95 % interval."""
    middle = statistics.fmean(places)
    squares = math.fsum((place - middle) ** 2 for place in places)
    weights = [(place - middle) / squares for place in places]
    slope = math.fsum(w * point.mean for w, point in zip(weights, points, strict=True))
    parts = [(w * point.error) ** 2 for w, point in zip(weights, points, strict=True)]
    variance = math.fsum(parts)
    spread = math.fsum(v * v / (p.seeds - 1) for v, p in zip(parts, points, strict=True))
    freedom = max(int(variance**2 / spread), 1) if spread else 1
    return slope, t_quantile(0.95, freedom) * math.sqrt(variance)
