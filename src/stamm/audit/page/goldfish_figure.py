"""Figure of the Goldfish loss mask: how much it masked, and how long the learned runs are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stamm.base.schema import read_record_if_present
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, percent
from stamm.pages.svg_figure import Axes, draw_panels, legend_name, log_scale
from stamm.pages.theme import drawn, series
from stamm.pretrain.records import GoldfishCoverage, TrainingSummary
from stamm.runs.run_view import RunView

_GAP_NAMES = ("median", "90 %", "99 %", "longest")


def goldfish_figure(run: RunView) -> Figure | None:
    """Coverage of the Goldfish loss mask; None when no arm was trained with one.

    Raises   DataError when the summary of a training does not follow its schema
    """
    summaries = [
        (arm, read_record_if_present(TrainingSummary, arm.folder / "summary.json"))
        for arm in run.arms
    ]
    covered = [
        (arm, summary.goldfish) for arm, summary in summaries if summary and summary.goldfish
    ]
    if not covered:
        return None
    # arms of a study share the mask; drawing equal ones again would only repeat them
    groups: list[tuple[list[str], GoldfishCoverage]] = []
    for arm, coverage in covered:
        for names, known in groups:
            if known == coverage:
                names.append(arm.name)
                break
        else:
            groups.append(([arm.name], coverage))
    labels = [_group_name(names, len(covered)) for names, _ in groups]

    def paint(panels: list[Axes]) -> None:
        left, right = panels
        for index, (_, coverage) in enumerate(groups):
            at = index
            left.barh(at, 100 * coverage.rate, height=0.5, color=series(index))
            left.plot([100 / coverage.k] * 2, [at - 0.4, at + 0.4], color=drawn("ink"), lw=1.4)
            expected = expected_gaps(coverage.k)
            marks = range(len(_GAP_NAMES))
            right.plot(
                marks,
                coverage.gap_quantiles,
                "o-",
                color=series(index),
                label=legend_name(labels[index]),
                ms=5,
            )
            right.plot(marks[:3], expected, "_", color=drawn("ink"), ms=14, mew=1.4)
        left.set_yticks(range(len(labels)), labels)
        left.set_ylim(-0.9, len(labels) - 0.1)
        left.invert_yaxis()
        left.set_xlabel("% of labels masked; the upright stroke is 1/k")
        left.set_title("How much is masked")
        right.set_xticks(range(len(_GAP_NAMES)), _GAP_NAMES)
        log_scale(right)
        right.set_title("Tokens between two masked ones")
        right.set_ylabel("tokens")

    first = groups[0][1]
    return Figure(
        key="goldfish",
        title="What the Goldfish mask covered",
        caption=(
            f"One label in {first.k} should never be learned, so that a repeated passage breaks "
            f"off. Here {percent(first.rate, 2)} are masked, and 1/k is {percent(1 / first.k, 2)}; labels without a full "
            f"window of {first.h} tokens before them are always learned. "
            f"Long gaps remain: {percent(first.long_share)} of the labels lie in learned runs of "
            f"more than 100. Even a mask that chose each label independently would leave "
            f"{percent(expected_long_share(first.k))} there; its gaps are the black strokes."
        ),
        alt="; ".join(
            f"{label}: {percent(c.rate, 2)} of labels masked, the longest learned run has "
            f"{fixed(c.gap_quantiles[-1], 0)} tokens"
            for label, (_, c) in zip(labels, groups, strict=True)
        ),
        svg=draw_panels("goldfish", 1.9 + 0.3 * len(groups), paint, 2),
        data=_goldfish_table(labels, [coverage for _, coverage in groups]),
        source=run.files([arm for arm, _ in covered], "summary.json"),
        command=run.made_by(),
    )


def expected_gaps(k: int) -> list[float]:
    """Gap lengths that a mask choosing each label with probability 1/k would have.

    A non-empty run of learned labels is longer than n with probability (1 - 1/k)^n.
    """
    return [max(math.ceil(math.log(1 - q) / math.log(1 - 1 / k)), 1) for q in (0.5, 0.9, 0.99)]


def expected_long_share(k: int, run: int = 100) -> float:
    """Share of labels in learned runs longer than `run` under independent masking at rate p = 1/k.

    A run of length L begins at a label with probability p (1 - p)^L p, and holds L labels; the
    sum over L > run is (1 - p)^(run + 1) (1 + run p).
    """
    rate = 1.0 / k
    return float((1.0 - rate) ** (run + 1) * (1.0 + run * rate))


def _goldfish_table(labels: Sequence[str], rows: Sequence[GoldfishCoverage]) -> DataTable:
    return DataTable(
        columns=(
            "arm", "hash", "k", "h", "labels", "masked", "rate", "1/k", "median gap",
            "90 % gap", "99 % gap", "longest gap", "in runs over 100", "zero windows",
        ),
        rows=tuple(
            (
                label, c.hash, str(c.k), str(c.h), f"{c.labels:,}", f"{c.masked:,}",
                percent(c.rate, 3), percent(1 / c.k, 3),
                *(fixed(gap, 0) for gap in c.gap_quantiles),
                percent(c.long_share), percent(c.zero_share),
            )
            for label, c in zip(labels, rows, strict=True)
        ),
        words=2,
    )  # fmt: skip


def _group_name(names: list[str], total: int) -> str:
    return "every arm" if len(names) == total > 1 else ", ".join(names)
