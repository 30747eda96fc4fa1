"""Simulated error and coverage of the intervals of comparisons over arms and looks: docs/evidence/coverage.json.

    python -m tools.coverage > docs/evidence/coverage.json

An experiment is wrong when at any look the interval of any difference misses the truth, which is also when a comparison
without differences shows one: Holm's first step and the intervals have the same level. So the simultaneous coverage over all arms and
looks is 1 - error. Two rules: "t", that of `stamm.statistics.intervals`; "skewness", which also asks that Hall's statistic, corrected for the
sample's skewness (Hall 1992, Journal of the Royal Statistical Society B 54), exceeds the quantile of t, and is not used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.statistics.sequential import nominal_levels, shares_of
from stamm.statistics.student_t import t_quantile

Array = NDArray[np.float64]
LEVEL, DRAWS = 0.05, 20_000
LOOKS = ((8, 16), (4, 8))
ARMS = (2, 3, 4, 5)
# Noise of one arm with mean 0: the last two are skewed.
NOISE = {
    "normal": "standard normal",
    "t3": "Student's t with 3 degrees of freedom",
    "mixture": "normal, with five times the spread in a tenth of the seeds",
    "lognormal": "exp(normal / 2)",
    "bad_seeds": "normal, and 5 standard deviations higher in a tenth of the seeds",
}
SYMMETRIC = ("normal", "t3", "mixture")
# How much of the baseline's noise is in each difference.
BASELINES = ("equal", "unequal", "none")


def noise(kind: str, draw: np.random.Generator, *shape: int) -> Array:
    """Noise of one kind with mean 0."""
    plain = draw.standard_normal(shape)
    if kind == "t3":
        return draw.standard_t(3, shape)
    if kind == "mixture":
        return plain * np.where(draw.random(shape) < 0.1, 5.0, 1.0)
    if kind == "lognormal":
        return np.exp(plain / 2) - math.exp(0.125)
    if kind == "bad_seeds":
        return plain + np.where(draw.random(shape) < 0.1, 5.0, 0.0) - 0.5
    return plain


def differences_of(
    kind: str, arms: int, baseline: str, seeds: int, draws: int, effect: float = 0.0
) -> Array:
    """Differences to the baseline, shape (draws, arms - 1, seeds), whose mean is `effect`.

    baseline   "equal": each arm and the baseline have noise of their own; "unequal": 0.2 to 1.5 of the
               baseline's is in the differences; "none": the baseline has no noise
    """
    draw = np.random.default_rng([list(NOISE).index(kind), arms, BASELINES.index(baseline), seeds])
    own, base = noise(kind, draw, draws, arms - 1, seeds), noise(kind, draw, draws, 1, seeds)
    if baseline == "none":
        return own + effect
    share = np.linspace(0.2, 1.5, arms - 1)[None, :, None] if baseline == "unequal" else 1.0
    return own - share * base + effect


def errors(
    differences_DAS: Array, looks: Sequence[int], truth: float = 0.0
) -> dict[str, NDArray[np.bool_]]:
    """By rule, whether an interval of an experiment misses `truth` at any look."""
    draws, arms, _ = differences_DAS.shape
    wrong = {"t": np.zeros(draws, bool), "skewness": np.zeros(draws, bool)}
    for count, level in zip(looks, nominal_levels(shares_of(looks), LEVEL / arms), strict=True):
        seen = differences_DAS[:, :, :count] - truth
        mean, deviation = seen.mean(2), seen.std(2)
        skewness = ((seen - mean[:, :, None]) ** 3).mean(2) / deviation**3
        share = mean / deviation * math.sqrt((count - 1) / count)  # t / sqrt n
        hall = share + skewness * share**2 / 3 + skewness**2 * share**3 / 27 + skewness / (6 * count)  # fmt: skip
        bound = t_quantile(1 - level, count - 1) / math.sqrt(count)
        beyond = np.abs(share) > bound
        wrong["t"] |= beyond.any(1)
        wrong["skewness"] |= (beyond & (np.sign(share) * hall > bound)).any(1)
    return wrong


def cell(kind: str, arms: int, baseline: str, looks: Sequence[int]) -> dict[str, Any]:
    """One row of the table."""
    wrong = errors(differences_of(kind, arms, baseline, looks[-1], DRAWS), looks)
    return {
        "noise": kind, "arms": arms, "baseline": baseline, "looks": list(looks),
        **{f"error_{rule}": float(found.mean()) for rule, found in wrong.items()},
    }  # fmt: skip


def power(seeds: int) -> dict[str, Any]:
    """Share of normal experiments of two arms that show an effect of about power 0.8."""
    effect = 2.8 * math.sqrt(2) * (1 + 1.6 / seeds) / math.sqrt(seeds)
    found = errors(differences_of("normal", 2, "equal", seeds, DRAWS, effect), (seeds,))
    return {
        "seeds": seeds, "effect": effect,
        **{f"power_{rule}": float(shown.mean()) for rule, shown in found.items()},
    }  # fmt: skip


def table() -> dict[str, Any]:
    """The whole file."""
    cells = [
        cell(kind, arms, baseline, looks)
        for looks in LOOKS
        for kind in NOISE
        for baseline in BASELINES
        for arms in ARMS
    ]
    return {
        "schema": 1,
        "draws": DRAWS,
        "level": LEVEL,
        "noise": NOISE,
        "cells": cells,
        "power": [power(seeds) for seeds in (4, 8, 16)],
    }


if __name__ == "__main__":
    print(json.dumps(table(), indent=1))
