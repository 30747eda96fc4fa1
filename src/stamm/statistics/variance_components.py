"""Noise of a paired difference, divided into that of seeds, of held-out texts, and of both together.

Every seed of an arm and of the baseline is measured on the same documents. Over seeds s and documents
d, the difference is mean + S_s + T_d + R_sd. More seeds remove S and R; only more text removes T.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Documents = Mapping[str, tuple[int, float]]
"""Bytes and nats of each held-out document, by its identifier."""


@dataclass(frozen=True, kw_only=True)
class NoiseComponents:
    """Standard deviations in bits per byte; `seeds` seeds and `documents` documents are behind them.

    seed          of a difference, by its seed alone
    text          of a difference, by the choice of the held-out documents alone
    interaction   of a difference of one seed, by documents that fit it by chance
    """

    seeds: int
    documents: int
    seed: float
    text: float
    interaction: float

    def standard_error(self) -> float:
        """Of the mean difference, for other seeds and other texts."""
        both = (self.seed**2 + self.interaction**2) / self.seeds
        return math.sqrt(both + self.text**2)


@dataclass(frozen=True, kw_only=True)
class WithoutDocument:
    """A difference without one held-out document: mean and standard deviation over seeds, in bits per byte."""

    document: str
    mean: float
    deviation: float


def most_influential(
    arm: Sequence[Documents], baseline: Sequence[Documents]
) -> WithoutDocument | None:
    """The difference arm - baseline without the document whose removal lowers its spread over seeds most.

    A model that fails on one text, such as one in a script that it hardly saw, can make most of the spread.

    Edge     None as `noise_components`
    Checked  tests/unit/statistics/test_variance_components.py
    """
    table = _table(arm, baseline)
    if table is None:
        return None
    names, sizes, bits = table
    total, sums = sum(sizes), [math.fsum(row) for row in bits]
    leave_one_out = []
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        if size == total:
            continue
        rates = [
            (whole - row[index]) / (total - size) for whole, row in zip(sums, bits, strict=True)
        ]
        leave_one_out.append(
            WithoutDocument(
                document=name, mean=statistics.fmean(rates), deviation=statistics.stdev(rates)
            )
        )
    return min(leave_one_out, key=lambda without_document: without_document.deviation)


def noise_components(
    arm: Sequence[Documents], baseline: Sequence[Documents]
) -> NoiseComponents | None:
    """The components of the difference arm - baseline, whose seeds come in the same order.

    Of D_s = sum_d (difference in bits) / sum_d bytes, the variance over documents is that of a ratio
    estimate, within each seed (T + R) and for the mean over seeds (T + R / seeds); the variance of
    D_s over seeds is S + R. A component that comes out negative is 0.

    Edge     None with fewer than two seeds or documents, with other documents or sizes in one of them,
             and with losses that are not finite
    Source   Cochran 1977, Sampling Techniques, section 6.4 (ratio estimate); Searle, Casella and
             McCulloch 1992, Variance Components, chapter 4 (two-way crossed, by moments)
    Checked  tests/unit/statistics/test_variance_components.py (simulated, with known components)
    """
    table = _table(arm, baseline)
    if table is None:
        return None
    (names, sizes, bits), seeds = table, len(arm)
    total = sum(sizes)
    within = statistics.fmean(_ratio_variance(row, sizes) for row in bits)
    mean = [statistics.fmean(column) for column in zip(*bits, strict=True)]
    of_mean = _ratio_variance(mean, sizes)
    over_seeds = statistics.variance(math.fsum(row) / total for row in bits)
    interaction = max(within - of_mean, 0.0) * seeds / (seeds - 1)
    return NoiseComponents(
        seeds=seeds,
        documents=len(names),
        seed=math.sqrt(max(over_seeds - interaction, 0.0)),
        text=math.sqrt(max(of_mean - interaction / seeds, 0.0)),
        interaction=math.sqrt(interaction),
    )


def _table(
    arm: Sequence[Documents], baseline: Sequence[Documents]
) -> tuple[list[str], list[int], list[list[float]]] | None:
    """Identifiers and bytes of the documents, and by seed the differences in bits; None: see noise_components."""
    names = sorted(arm[0]) if arm else []
    if len(arm) < 2 or len(names) < 2 or len(baseline) != len(arm):
        return None
    sizes = [arm[0][name][0] for name in names]
    for documents in (*arm, *baseline):
        if sorted(documents) != names or [documents[name][0] for name in names] != sizes:
            return None
    bits = [
        [(arm_documents[name][1] - baseline_documents[name][1]) / math.log(2) for name in names]
        for arm_documents, baseline_documents in zip(arm, baseline, strict=True)
    ]
    if sum(sizes) <= 0 or not all(math.isfinite(value) for row in bits for value in row):
        return None
    return names, sizes, bits


def _ratio_variance(bits: Sequence[float], sizes: Sequence[int]) -> float:
    """Variance over documents of sum(bits) / sum(sizes)."""
    count, total = len(bits), sum(sizes)
    rate = math.fsum(bits) / total
    squares = math.fsum(
        (amount - rate * size) ** 2 for amount, size in zip(bits, sizes, strict=True)
    )
    return count / (count - 1) * squares / total**2
