"""Alignment tax: what alignment cost in held-out bits per byte, and in memorized passages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stamm.align.results.answer_metrics import ratio_change
from stamm.align.results.answers_config import AnswersConfig
from stamm.align.results.bootstrap import Bootstrap
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.schema import read_lines, read_record
from stamm.reports.intervals import interval
from stamm.runs.schemas.evaluation import (
    DocumentLoss,
    MeanInterval,
    MemorizationFile,
    RepeatBucket,
)

DOCUMENTS, AUDIT = "held_out_documents.jsonl", "memorization.json"


def bits_change(
    config: AnswersConfig, start: Path | None, aligned: Sequence[Path]
) -> dict[str, Any] | None:
    """Bits per byte of the same held-out documents, as an `AnswerChange`; None without results.

    start, aligned   evaluate/ folders, the latter by seed

    Raises   DataError when the models were evaluated on other documents
    """
    paths = [folder / DOCUMENTS for folder in ((start, *aligned) if start else ())]
    if len(paths) < 2 or not all(path.is_file() for path in paths):
        return None
    losses = [{one.document_id: one for one in read_lines(DocumentLoss, path)} for path in paths]
    sizes = [{name: one.bytes for name, one in table.items()} for table in losses]
    for path, size in zip(paths[1:], sizes[1:], strict=True):
        if size != sizes[0]:
            raise DataError(
                f"{path} is about other documents than {paths[0]}",
                fix="Evaluate both models on the same held-out text",
            )
    names = sorted(sizes[0])
    bits = np.array([[table[n].nats / math.log(2) for n in names] for table in losses])
    bytes_1D = np.array([[float(sizes[0][n]) for n in names]])
    bootstrap = Bootstrap(len(names), len(aligned), config.draws, config.seed, config.confidence)
    return ratio_change(
        bootstrap, (bits[:1], bytes_1D), (bits[1:], np.repeat(bytes_1D, len(aligned), axis=0))
    )


def memorization_changes(
    config: AnswersConfig, start: Path | None, aligned: Sequence[Path]
) -> list[dict[str, Any]]:
    """Memorization of planted passages by repeats, as `MemorizationChange`s; [] without results.

    The interval of one seed is over passages, that of several over seeds.
    """
    paths = [folder / AUDIT for folder in ((start, *aligned) if start else ())]
    if len(paths) < 2 or not all(path.is_file() for path in paths):
        return []
    tables = [_by_repeats(path) for path in paths]
    found = []
    for repeats, first in tables[0].items():
        others = [table[repeats] for table in tables[1:] if repeats in table]
        costs = [one.nll_minus_control for one in others if one.nll_minus_control]
        if first.nll_minus_control is None or not costs or len(costs) < len(tables) - 1:
            continue
        found.append(
            {
                "repeats": repeats,
                "before": to_plain(first.nll_minus_control),
                "after": to_plain(_over_seeds(costs, config.confidence)),
                "rouge_before": first.rouge_l.mean,
                "rouge_after": math.fsum(one.rouge_l.mean for one in others) / len(others),
            }
        )
    return found


def _by_repeats(path: Path) -> Mapping[int, RepeatBucket]:
    return {bucket.repeats: bucket for bucket in read_record(MemorizationFile, path).buckets}


def _over_seeds(costs: Sequence[MeanInterval], confidence: float) -> MeanInterval:
    if len(costs) == 1:
        return costs[0]
    found = interval([one.mean for one in costs], confidence)
    return MeanInterval(mean=found.mean, low=found.low, high=found.high)
