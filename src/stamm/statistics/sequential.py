"""Group-sequential tests: how much of the error rate each planned look at a comparison may spend.

Alpha spending of O'Brien-Fleming type: by the share t of the planned seeds, a two-sided test at level a
has spent 4 (1 - Phi(z(1 - a/4) / sqrt t)). Early looks cost little, and the last keeps most of a. A
look's paired t test is held to what is spent since the look before. Those levels sum to a, so the error
rate over all looks is at most a whatever their correlation is, with any number of seeds (union bound).

The usual bounds use the correlation that looks have under a known variance. With paired t tests of 3 to
16 seeds their simulated error was 0.0508 to 0.0524 instead of 0.05, so they are not used here. The union
bound costs nearly nothing with two looks (simulated 0.0487) and about 13 % more seeds with three. A
confidence sequence would allow a look after every seed, without a last one, and its intervals are wider;
a comparison has few looks, planned before it starts.

Source   Lan and DeMets 1983, Biometrika 70 (spending); Jennison and Turnbull 2000, Group Sequential
         Methods, chapter 9 (repeated confidence intervals); Maurer and Bretz 2013, Statistics in
         Biopharmaceutical Research 5 (Holm's procedure over looks)
Checked  tests/unit/statistics/test_sequential.py (simulated family-wise error and power)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

SPENDING = "O'Brien-Fleming type (Lan and DeMets 1983), two-sided, union bound over looks"
_LARGEST = 0.5  # up to here each look's level rises with the level of all


def spent(share: float, level: float) -> float:
    """Error rate spent with `share` of the planned seeds finished, of a two-sided test at `level`."""
    return 2 * math.erfc(-NormalDist().inv_cdf(level / 4) / math.sqrt(2 * share))


@functools.lru_cache(maxsize=1024)
def nominal_levels(shares: tuple[float, ...], level: float) -> tuple[float, ...]:
    """The two-sided level of each look's own test, so that all looks together have `level`.

    shares   of the planned seeds at each look, rising to 1
    """
    if len(shares) == 1:
        return (level,)
    sums = [0.0, *(spent(share, level) for share in shares[:-1]), level]
    return tuple(high - low for low, high in itertools.pairwise(sums))


def sequential_p(p_value: float, look: int, shares: tuple[float, ...]) -> float:
    """The smallest level at which the group-sequential test rejects at this look, counted from 0.

    Edge     with a single look it is `p_value`; above 0.5 it is 1
    """
    if len(shares) == 1:
        return p_value
    low, high = min(max(p_value, 1e-300), _LARGEST), _LARGEST
    if nominal_levels(shares, high)[look] < p_value:
        return 1.0
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if nominal_levels(shares, middle)[look] >= p_value else (middle, high)
        )
    return high


def reached(looks: Sequence[int], seeds: int) -> int | None:
    """The last of `looks` that `seeds` finished seeds reach, counted from 0; None before the first."""
    return max((i for i, count in enumerate(looks) if count <= seeds), default=None)


def shares_of(looks: Sequence[int]) -> tuple[float, ...]:
    """The looks, in seeds, as shares of the last."""
    return tuple(count / looks[-1] for count in looks)
