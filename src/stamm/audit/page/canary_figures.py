"""Figures of canaries, one for each arm: exposure of made-up texts, and varied beside exact copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stamm.audit.page.figures import error_bars
from stamm.audit.results import AuditedArm
from stamm.evaluate.records import CanaryResult, MemorizationFile, RepeatBucket
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, interval_text
from stamm.pages.svg_figure import Axes, draw_panels, legend, legend_name
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, mark, series
from stamm.runs.run_view import ArmView, RunView
from stamm.statistics.estimates import MeanInterval

_UNSEEN_BITS = 1 / math.log(2)
_PASSAGES = "passages"
_ORDER = (
    _PASSAGES, "rewrapped", "indented", "prefixed", "random_words", "prefixed_words",
    "random_characters", "secret",
)  # fmt: skip
_LONGEST_NAME = 40
Line = tuple[str, tuple[RepeatBucket, ...]]
Panel = tuple[str, list[Line], Callable[[RepeatBucket], MeanInterval | None], tuple[float, ...]]


def canary_figures(run: RunView, arms: Sequence[AuditedArm]) -> tuple[Figure, ...]:
    """One figure per audited arm; none for an arm whose corpus has no canaries."""
    return tuple(
        _figure(run, arm, audit)
        for arm, results in arms
        if (audit := results.memorization) and any(kind.buckets for kind in audit.canaries)
    )


def _figure(run: RunView, arm: ArmView, audit: MemorizationFile) -> Figure:
    panels = [panel for panel in (_exposure(audit), _copies(audit)) if panel[1]]
    counts = sorted({b.repeats for _, lines, _, _ in panels for _, line in lines for b in line})

    def paint(axes: list[Axes]) -> None:
        for panel_axes, panel in zip(axes, panels, strict=True):
            _panel(panel_axes, panel, counts)

    key = f"canaries-{arm.number}"
    name = one_line(arm.name, _LONGEST_NAME)
    return Figure(
        key=key,
        title=f"Canaries: {name}",
        caption=(
            "Exposure: the rank of a made-up text, by its cost, among others drawn in the "
            "same way that were never planted; each bit halves the number of those that the model "
            "finds likelier. The dotted lines are the most that can be measured, and the mean of a "
            f"text never seen, {_UNSEEN_BITS:.2f} bits. Cost: that of the true continuation against "
            "texts of the same kind never planted. Rewrapped, indented and prefixed texts have "
            "another layout at each repeat, so that the Goldfish mask drops other tokens: where they "
            "lie below exact copies of as many repeats, the layout evades the mask. "
            f"{_skipped(audit)}"
        ).rstrip(),
        alt="; ".join(_summary_text(kind) for kind in audit.canaries if kind.buckets),
        svg=draw_panels(key, 3.2, paint, len(panels)),
        data=_table(audit),
        source=run.files([arm], "audit/memorization.json"),
        command=f"stamm audit {run.folder_of(arm)}",
    )


def _exposure(audit: MemorizationFile) -> Panel:
    lines = [
        (canary.kind, tuple(b for b in canary.buckets if b.exposure_bits))
        for canary in audit.canaries
    ]
    most = max((canary.candidates for canary in audit.canaries), default=0)
    return (
        "Exposure, bits",
        [line for line in lines if line[1]],
        lambda bucket: bucket.exposure_bits,
        (_UNSEEN_BITS, math.log2(most + 1)),
    )


def _copies(audit: MemorizationFile) -> Panel:
    """Kinds with varied copies and those they are compared with, minus texts never seen."""
    beside = {canary.beside for canary in audit.canaries if canary.beside}
    shown = [canary for canary in audit.canaries if canary.beside or canary.kind in beside]
    every = [(_PASSAGES, audit.buckets)] if _PASSAGES in beside else []
    every += [(canary.kind, canary.buckets) for canary in shown]
    lines = [(name, tuple(b for b in line if b.nll_minus_control)) for name, line in every]
    return (
        "Cost of the true continuation minus control, nats/token",
        [line for line in lines if line[1]],
        lambda bucket: bucket.nll_minus_control,
        (0.0,),
    )


def _panel(axes: Axes, panel: Panel, counts: Sequence[int]) -> None:
    title, lines, measure, levels = panel
    for index, (kind, buckets) in enumerate(lines):
        number = _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + index
        estimates = [(b.repeats, e) for b in buckets if (e := measure(b))]
        axes.errorbar(
            [counts.index(repeats) + 0.08 * (index - (len(lines) - 1) / 2) for repeats, _ in estimates],
            [e.mean for _, e in estimates],
            yerr=error_bars([e for _, e in estimates]), fmt=mark(number) + "-", ms=4.5, lw=1.1, color=series(number),
            label=legend_name(_words(kind)),
        )  # fmt: skip
    for level in levels:
        axes.axhline(level, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlim(-0.5, max(len(counts) - 0.5, 0.5))
    axes.set_xlabel("occurrences of the text in the training text")
    axes.set_title(title, pad=34)
    legend(axes, columns=3)


def _table(audit: MemorizationFile) -> DataTable:
    kinds = (
        (_PASSAGES, audit.buckets),
        *((canary.kind, canary.buckets) for canary in audit.canaries),
    )
    return DataTable(
        columns=(
            "kind", "repeats", "texts", "written whole", "exposure, bits",
            "cost of the truth, nats/token", "minus control, nats/token",
            "minus exact copies, nats/token", "Rouge-L",
        ),
        rows=tuple(_row(name, bucket) for name, buckets in kinds for bucket in buckets),
        words=2,
    )  # fmt: skip


def _row(name: str, bucket: RepeatBucket) -> tuple[str, ...]:
    return (
        _words(name),
        "control" if bucket.repeats == 0 else str(bucket.repeats),
        f"{bucket.passages:,}",
        "" if bucket.extracted is None else f"{bucket.extracted:,}",
        _cell(bucket.exposure_bits, 2),
        _cell(bucket.nll_nats, 3),
        _cell(bucket.nll_minus_control, 3),
        _cell(bucket.nll_minus_exact, 3),
        _cell(bucket.rouge_l, 3),
    )


def _summary_text(kind: CanaryResult) -> str:
    last = kind.buckets[-1]
    said = f"{_words(kind.kind)} after {last.repeats} repeats: "
    if last.exposure_bits:
        said += f"{fixed(last.exposure_bits.mean, 2)} bits of exposure, "
    written = f"{last.extracted} of {last.passages} written whole, " if last.extracted else ""
    return f"{said}{written}{fixed(last.nll_nats.mean, 3)} nats per true token"


def _skipped(audit: MemorizationFile) -> str:
    short = [(canary.kind, canary.skipped) for canary in audit.canaries if canary.skipped]
    if not short:
        return ""
    return f"Too short to be measured: {', '.join(f'{n:,} {_words(kind)}' for kind, n in short)}."


def _cell(estimate: MeanInterval | None, digits: int) -> str:
    return interval_text(estimate, digits) if estimate else ""


def _words(kind: str) -> str:
    return one_line(kind, _LONGEST_NAME).replace("_", " ")
