"""Hierarchical bootstrap: intervals of means and ratios over prompts and seeds.

Letters: D draws, S seeds, P prompts.
Checked  tests/unit/statistics/test_bootstrap.py (coverage by simulation)
"""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from stamm.statistics.estimates import MeanInterval
from stamm.statistics.student_t import t_quantile

Array = NDArray[np.float64]
_CHUNK = 1 << 22


class Bootstrap:
    """Resampled prompts, the same for all seeds and measures, and resampled seeds.

    A measure is a ratio of sums over prompts, averaged over seeds. One draw takes P prompts with
    replacement, whichever seed answered them, since all seeds answered the same prompts; and S seeds.
    The part of the seeds is widened by sqrt(S / (S - 1)) t / z, with t and z the quantiles of Student's
    distribution of S - 1 degrees of freedom and of the normal: a bootstrap of few seeds is too narrow
    by this factor. So an interval is that of Student's t over seeds where seeds differ more than
    prompts, and that of the bootstrap over prompts where they differ less. With one seed it is over
    prompts alone.
    """

    def __init__(self, prompts: int, seeds: int, draws: int, seed: int, confidence: float) -> None:
        random = np.random.default_rng(seed)
        self.confidence = confidence
        rows = max(_CHUNK // max(prompts, 1), 1)
        self._counts_DP = np.concatenate(
            [
                random.multinomial(prompts, [1 / prompts] * prompts, size=min(rows, draws - first))
                for first in range(0, draws, rows)
            ]
        ).astype(np.float32)
        chosen_DS = random.multinomial(seeds, [1 / seeds] * seeds, size=draws) / seeds
        widened = 1.0
        if seeds > 1:
            t = t_quantile(confidence, seeds - 1)
            normal = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
            widened = math.sqrt(seeds / (seeds - 1)) * t / normal
        self._weights_DS: Array = 1 / seeds + widened * (chosen_DS - 1 / seeds)

    def estimate(self, top_SP: Array, bottom_SP: Array | None = None) -> float:
        """Mean over seeds of sum(top) / sum(bottom); of mean(top) without `bottom`.

        Edge     NaN for a seed whose `bottom` sums to 0
        """
        bottom = np.ones_like(top_SP) if bottom_SP is None else bottom_SP
        with np.errstate(invalid="ignore", divide="ignore"):
            return float((top_SP.sum(axis=1) / bottom.sum(axis=1)).mean())

    def draws(self, top_SP: Array, bottom_SP: Array | None = None) -> Array:
        """The estimate of every draw, shape (D,).

        Arrays of one row, such as those of the start model, are the same for all seeds.
        """
        bottom = np.ones_like(top_SP) if bottom_SP is None else bottom_SP
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio_DS = (self._counts_DP @ top_SP.T) / (self._counts_DP @ bottom.T)
        if len(top_SP) == 1:
            return np.asarray(ratio_DS[:, 0], dtype=np.float64)
        return np.asarray((ratio_DS * self._weights_DS).sum(axis=1), dtype=np.float64)

    def ratio(self, top_SP: Array, bottom_SP: Array | None = None) -> MeanInterval:
        """The estimate with its interval; no interval from fewer than two prompts."""
        return self.interval(self.estimate(top_SP, bottom_SP), self.draws(top_SP, bottom_SP))

    def interval(self, estimate: float, draws_D: Array) -> MeanInterval:
        """`estimate` with the percentile interval of its draws; draws that are NaN are left out."""
        known = draws_D[np.isfinite(draws_D)]
        if self._counts_DP.shape[1] < 2 or not len(known) or not math.isfinite(estimate):
            return MeanInterval(mean=estimate)
        tail = 50 * (1 - self.confidence)
        low, high = np.percentile(known, [tail, 100 - tail])
        return MeanInterval(
            mean=estimate, low=min(float(low), estimate), high=max(float(high), estimate)
        )

    def p_value(self, draws_D: Array, null: float) -> float:
        """Two-sided p of "the estimate is `null`": 2 (1 + draws on the rarer side) / (D + 1).

        Edge     1 from fewer than two prompts
        """
        if self._counts_DP.shape[1] < 2:
            return 1.0
        beyond = min(int((draws_D <= null).sum()), int((draws_D >= null).sum()))
        return min(1.0, 2 * (1 + beyond) / (len(draws_D) + 1))
