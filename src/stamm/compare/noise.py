"""Noise of a comparison's differences: what pairing, averaged weights, seeds and texts contribute."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from stamm.compare.results import Compared, ComparedArm
from stamm.pages.figure import DataTable
from stamm.pages.formatting import ABSENT, fixed, signed
from stamm.pages.text import one_line
from stamm.statistics.variance_components import (
    NoiseComponents,
    WithoutDocument,
    most_influential,
    noise_components,
)

_DIGITS = 4
Bits = Mapping[int, float]


def noise_table(compared: Compared) -> DataTable | None:
    """Standard deviations of each difference to the baseline; None before two seeds of two arms."""
    base = next(arm for arm in compared.arms if arm.name == compared.baseline)
    rows = tuple(
        _row(arm, base, paired)
        for arm in compared.arms
        if arm is not base and len(paired := compared.paired(arm.name)) > 1
    )
    if not rows:
        return None
    return DataTable(
        columns=(
            "arm", "paired, over seeds", "unpaired", "paired, final weights", "standard error, seeds",
            "standard error, texts", "standard error, both", "held-out documents", "held-out bytes",
            "without one document",
        ),
        rows=rows,
        words=1,
        note="Bits per byte. The first three columns are standard deviations over seeds: of the "
        "difference within a seed, of the same without pairing, and where averaged weights were "
        "evaluated, of the final ones. Differences are taken document by document; the standard "
        "error over texts is what other held-out documents would change, and more seeds do not "
        "lower it. Intervals in the verdict are over seeds, for these documents. Last column: the "
        "difference without the document that adds most to its spread over seeds, and its standard "
        "deviation.",
    )  # fmt: skip


def components_of(arm: ComparedArm, base: ComparedArm) -> NoiseComponents | None:
    """The noise components of one arm's difference, over the seeds that both have."""
    return noise_components(*_by_document(arm, base))


def outlying_document(compared: Compared, arm: ComparedArm) -> WithoutDocument | None:
    """The document that makes most of the spread of one arm's difference over seeds.

    Edge   None where its removal leaves more than half of the standard deviation
    """
    base = next(candidate for candidate in compared.arms if candidate.name == compared.baseline)
    document, paired = most_influential(*_by_document(arm, base)), compared.paired(arm.name)
    if document is None or len(paired) < 2 or 2 * document.deviation >= statistics.stdev(paired):
        return None
    return document


def _by_document(
    arm: ComparedArm, base: ComparedArm
) -> tuple[list[Mapping[str, tuple[int, float]]], list[Mapping[str, tuple[int, float]]]]:
    """Losses by document of both arms, over the seeds that both have."""
    arm_documents, base_documents = (
        {run.seed: run.documents for run in side.runs if run.documents} for side in (arm, base)
    )
    seeds = sorted(arm_documents.keys() & base_documents.keys())
    return [arm_documents[seed] for seed in seeds], [base_documents[seed] for seed in seeds]


def _row(arm: ComparedArm, base: ComparedArm, paired: list[float]) -> tuple[str, ...]:
    bits, other = _finite(arm.judged()), _finite(base.judged())
    alone = [statistics.variance(by_seed.values()) for by_seed in (bits, other) if len(by_seed) > 1]
    error = statistics.stdev(paired) / math.sqrt(len(paired))
    components, without = components_of(arm, base), most_influential(*_by_document(arm, base))
    documents = next((run.documents for run in arm.runs if run.documents), {})
    return (
        one_line(arm.name, 40),
        fixed(statistics.stdev(paired), _DIGITS),
        fixed(math.sqrt(sum(alone)), _DIGITS),
        fixed(_final(arm, base), _DIGITS),
        fixed(error, _DIGITS),
        fixed(components.text if components else None, _DIGITS),
        fixed(math.hypot(error, components.text) if components else None, _DIGITS),
        f"{components.documents:,}" if components else ABSENT,
        f"{sum(size for size, _ in documents.values()):,}" if components else ABSENT,
        ABSENT
        if without is None
        else f"{signed(without.mean, _DIGITS)}, {fixed(without.deviation, _DIGITS)} "
        f"({one_line(without.document, 8)})",
    )


def _final(arm: ComparedArm, base: ComparedArm) -> float | None:
    arm_bits, base_bits = (
        _finite({run.seed: run.final.bits_per_byte for run in side.runs if run.final})
        for side in (arm, base)
    )
    paired = [arm_bits[seed] - base_bits[seed] for seed in arm_bits if seed in base_bits]
    return statistics.stdev(paired) if len(paired) > 1 else None


def _finite(bits: Bits) -> Bits:
    return {seed: value for seed, value in bits.items() if math.isfinite(value)}
