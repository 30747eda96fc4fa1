"""Figures of the audit: repeats, the grid, extraction by sampling, membership, paired differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stamm.audit.records import GridCell, GridFile, MembershipFile
from stamm.audit.results import AuditedArm, unequal_audit
from stamm.evaluate.records import MemorizationFile, RepeatBucket
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed, interval_text, percent
from stamm.pages.svg_figure import Axes, draw_panels, legend, legend_name
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, mark, series
from stamm.runs.run_view import ArmView, RunView
from stamm.statistics.estimates import MeanInterval
from stamm.statistics.intervals import interval

_NAME = 40
_SHORT_NAME = 24
_WITHOUT = "none"  # the arm without a loss mask, which others are compared with
_SHOWN_CHANCE = 0.5
_SHOWN_SCORE = "min_k_pp"
Line = tuple[str, int, Sequence[tuple[int, MeanInterval]]]
"""Name, number of its colour, and (place on the axis, value)."""


def memorization_figure(run: RunView, arms: Sequence[AuditedArm]) -> Figure | None:
    """Rouge-L and the cost of the truth against repeats, or None when no arm was audited."""
    audits = [(arm, audit) for arm, results in arms if (audit := results.memorization)]
    audited = [(arm, audit) for arm, audit in audits if audit.buckets]
    if not audited:
        return None
    repeats = sorted({b.repeats for _, audit in audited for b in audit.buckets if b.repeats})

    def paint(panels: list[Axes]) -> None:
        parts: tuple[tuple[Axes, Callable[[RepeatBucket], MeanInterval], str], ...] = (
            (
                panels[0],
                lambda bucket: bucket.nll_nats,
                "Cost of the true continuation, nats/token",
            ),
            (panels[1], lambda bucket: bucket.rouge_l, "Rouge-L of what was written"),
        )
        for axes, measure, title in parts:
            for index, (arm, audit) in enumerate(audited):
                _memory(axes, audit, measure, repeats, index - (len(audited) - 1) / 2, arm)
            axes.set_xticks(range(len(repeats)), [str(count) for count in repeats])
            axes.set_xlim(-0.5, max(len(repeats) - 0.5, 0.5))
            axes.set_xlabel("occurrences of the passage in the training text")
            axes.set_title(title, pad=22)
        panels[1].set_ylim(bottom=0)
        legend(panels[0], columns=4)

    first = audited[0][1]
    return Figure(
        key="memory",
        title="Memorization of planted passages",
        caption=(
            "Left: what a token of the true continuation costs the model; right: how much of it "
            "the model writes by itself. Dots with intervals over passages "
            f"({one_line(first.interval, 120)}); the bands are passages that were never planted. A "
            "model that memorizes falls below its band on the left as repeats grow, long before "
            "it rises above it on the right. "
            f"{_left_out(audited)}{unequal_audit([(arm.name, audit) for arm, audit in audits])}"
        ).rstrip(),
        alt="; ".join(_fall(arm, audit) for arm, audit in audited),
        svg=draw_panels("memory", 3.0, paint, 2),
        data=_memory_table(audited),
        source=run.files([arm for arm, _ in audited], "audit/memorization.json"),
        command=run.command("audit", [arm for arm, _ in audited]),
    )


def _memory(
    axes: Axes,
    audit: MemorizationFile,
    measure: Callable[[RepeatBucket], MeanInterval],
    repeats: list[int],
    shift: float,
    arm: ArmView,
) -> None:
    colour = series(arm.number)
    for bucket in audit.buckets:
        estimate = measure(bucket)
        if bucket.repeats == 0:
            if estimate.low is not None and estimate.high is not None:
                axes.axhspan(estimate.low, estimate.high, color=colour, alpha=0.09, lw=0)
            axes.axhline(estimate.mean, color=colour, lw=0.8, ls=(0, (2, 2)))
    seen = [bucket for bucket in audit.buckets if bucket.repeats]
    if not seen:
        return
    estimates = [measure(bucket) for bucket in seen]
    axes.errorbar(
        [repeats.index(bucket.repeats) + 0.13 * shift for bucket in seen],
        [estimate.mean for estimate in estimates],
        yerr=error_bars(estimates), fmt=mark(arm.number) + "-", ms=5, lw=1.2, color=colour,
        label=legend_name(arm.name),
    )  # fmt: skip


def _memory_table(audited: list[tuple[ArmView, MemorizationFile]]) -> DataTable:
    rows = []
    for arm, audit in audited:
        for bucket in audit.buckets:
            against = bucket.nll_minus_control
            rows.append(
                (
                    one_line(arm.name, 60),
                    "control" if bucket.repeats == 0 else str(bucket.repeats),
                    str(bucket.passages),
                    interval_text(bucket.nll_nats, 3),
                    interval_text(against, 3) if against else "",
                    interval_text(bucket.rouge_l, 3),
                    interval_text(bucket.exact_prefix_tokens, 1),
                    interval_text(bucket.longest_common_span_tokens, 1),
                    "" if bucket.extracted is None else f"{bucket.extracted:,}",
                )
            )
    return DataTable(
        columns=(
            "arm", "repeats", "passages", "cost of the truth, nats/token",
            "minus control, nats/token", "Rouge-L", "exact prefix, tokens", "longest span, tokens", "written whole",
        ),
        rows=tuple(rows),
        words=2,
    )  # fmt: skip


def _left_out(audited: list[tuple[ArmView, MemorizationFile]]) -> str:
    """Which planted texts no audit could measure, "" when all were."""
    said = ""
    for arm, audit in audited:
        name = one_line(arm.name, _SHORT_NAME)
        if audit.skipped:
            said += f"{name}: {audit.skipped:,} passages were too short to be measured. "
    withdrawn = max(audit.withdrawn for _, audit in audited)
    if withdrawn:
        said += f"{withdrawn:,} planted texts were withdrawn from the corpus and are not measured. "
    return said


def _fall(arm: ArmView, audit: MemorizationFile) -> str:
    last = audit.buckets[-1]
    said = f"{arm.name}: {fixed(last.nll_nats.mean, 3)} nats per true token"
    if last.repeats:
        said += f" after {last.repeats} repeats"
    if last.nll_minus_control:
        said += f", {fixed(last.nll_minus_control.mean, 3)} against the control"
    return said


def audit_figures(run: RunView, arms: Sequence[AuditedArm], rows: int) -> tuple[Figure, ...]:
    """All figures of grid.json and membership.json, and of continuations of several arms.

    rows   of a data table
    """
    figures = [_grid(run, arm, results.grid, rows) for arm, results in arms if results.grid]
    figures += [_extraction(run, arms), _paired(run, arms)]
    return tuple(figure for figure in figures if figure is not None)


def _grid(run: RunView, arm: ArmView, grid: GridFile, rows: int) -> Figure | None:
    cells = [cell for cell in grid.cells if not cell.language]
    if not cells:
        return None
    prefix = min(cell.prefix_tokens for cell in cells)
    offset = min(cell.offset_tokens for cell in cells)
    panels = (
        ("prefix, tokens", "prefix_tokens", [c for c in cells if c.offset_tokens == offset]),
        ("offset, tokens", "offset_tokens", [c for c in cells if c.prefix_tokens == prefix]),
    )
    repeats = sorted({cell.repeats for cell in cells})

    def paint(axes: list[Axes]) -> None:
        for panel_axes, (name, key, kept) in zip(axes, panels, strict=True):
            places = sorted({int(getattr(cell, key)) for cell in kept})
            lines = [
                (
                    "control" if count == 0 else f"{count} ×",
                    number,
                    [
                        (places.index(getattr(cell, key)), cell.nll_nats)
                        for cell in kept
                        if cell.repeats == count
                    ],
                )
                for number, count in enumerate(repeats)
            ]
            _lines(panel_axes, lines, [str(position) for position in places], name)
        axes[0].set_ylabel("cost of the truth, nats/token")
        legend(axes[0], columns=3)

    rules = ", ".join(one_line(rule, _NAME).replace("_", " ") for rule in grid.as_published)
    key, name = f"grid-{arm.number}", one_line(arm.name, _NAME)
    return Figure(
        key=key,
        title=f"Prefix and offset: {name}",
        caption=(
            f"Cost of the true continuation by the number of tokens shown (left, offset {offset}) "
            f"and by the number of tokens of the passage skipped before them (right, {prefix} "
            f"tokens shown), one line for each number of repeats, with 95 % intervals over "
            f"passages. {grid.points:,} points are measured, greedy and sampled (temperature "
            f"{grid.temperature:g}, top-k {grid.top_k}, top-p {grid.top_p:g}); {grid.left_out:,} "
            "do not fit into the passage or the context, or are excluded. The table has Rouge-L, "
            f"the exact match of {grid.match_tokens} tokens, and the type-token ratio as control: "
            "a low one is a loop, not memorization."
            f"{f' Rules of the published audit applied: {rules}.' if rules else ''}"
        ),
        alt="; ".join(
            f"{cell.repeats} repeats: {fixed(cell.nll_nats.mean, 3)} nats per true token"
            for cell in cells
            if (cell.prefix_tokens, cell.offset_tokens) == (prefix, offset)
        ),
        svg=draw_panels(key, 3.0, paint, 2),
        data=thinned(
            (
                "repeats", "language", "prefix", "offset", "passages", "cost, nats/token",
                "minus control", "Rouge-L, greedy", "Rouge-L, sampled", "exact match, greedy",
                "type-token ratio", "of the truth",
            ),
            [_row(cell) for cell in grid.cells], rows, f"{run.inside(arm)}audit/grid.json", 2,
        ),
        source=run.files([arm], "audit/grid.json"),
        command=f"stamm audit {run.folder_of(arm)}",
    )  # fmt: skip


def _row(cell: GridCell) -> tuple[str, ...]:
    return (
        "control" if cell.repeats == 0 else str(cell.repeats),
        one_line(cell.language, _NAME) or "all",
        str(cell.prefix_tokens),
        str(cell.offset_tokens),
        f"{cell.passages:,}",
        interval_text(cell.nll_nats, 3),
        interval_text(cell.nll_minus_control, 3) if cell.nll_minus_control else "",
        interval_text(cell.greedy.rouge_l, 3),
        interval_text(cell.sampled.rouge_l, 3),
        interval_text(cell.greedy.exact_match, 2),
        fixed(cell.greedy.type_token_ratio.mean, 2),
        fixed(cell.true_type_token_ratio.mean, 2),
    )


def _extraction(run: RunView, arms: Sequence[AuditedArm]) -> Figure | None:
    grids = [(arm, grid) for arm, results in arms if (grid := results.grid) and grid.extraction]
    scored = [(arm, file) for arm, results in arms if (file := results.membership) and file.areas]
    if not grids and not scored:
        return None
    most = {arm.name: max(rate.repeats for rate in grid.extraction) for arm, grid in grids}
    samples = sorted({rate.samples for _, grid in grids for rate in grid.extraction})
    repeats = sorted({s.repeats for _, membership in scored for s in membership.areas if s.repeats})

    def paint(axes: list[Axes]) -> None:
        rates: list[Line] = [
            (
                arm.name,
                arm.number,
                [
                    (samples.index(rate.samples), rate.share)
                    for rate in grid.extraction
                    if rate.repeats == most[arm.name] and rate.chance == _SHOWN_CHANCE
                ],
            )
            for arm, grid in grids
        ]
        _lines(
            axes[0],
            rates,
            [str(n) if n < 1000 else f"{n // 1000} k" for n in samples],
            "samples, n",
        )
        axes[0].set_title("Passages within n samples, chance 50 %", pad=22)
        areas: list[Line] = [
            (
                arm.name,
                arm.number,
                [
                    (repeats.index(s.repeats), s.auc)
                    for s in membership.areas
                    if s.repeats and s.score == _SHOWN_SCORE
                ],
            )
            for arm, membership in scored
        ]
        _lines(axes[1], areas, list(map(str, repeats)), "occurrences of the passage in the text")
        axes[1].axhline(0.5, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
        axes[1].set_title("Membership: AUC of min-k %++", pad=22)
        legend(axes[0] if grids else axes[1], columns=4)

    return Figure(
        key="membership",
        title="Extraction by sampling, and membership",
        caption=(
            "Left: share of the most repeated passages that n samples contain with a chance of at "
            "least 50 %, computed from log-probabilities. Right: share of pairs in which a score "
            "of the planted passage exceeds that of a passage never planted; 0.5 is guessing. "
            "Intervals are 95 %, over passages (Wilson; Newcombe)."
        ),
        alt="; ".join(_best_area(arm, membership) for arm, membership in scored),
        svg=draw_panels("membership", 3.0, paint, 2),
        data=DataTable(
            columns=("arm", "measure", "repeats", "value"),
            rows=(*_area_rows(scored), *_rate_rows(grids)),
            words=2,
        ),
        source=f"{run.files([arm for arm, _ in scored or grids], 'audit/membership.json')}, grid.json",
        command=f"stamm audit {run.name}",
    )


def _best_area(arm: ArmView, file: MembershipFile) -> str:
    best = max(file.areas, key=lambda area: area.auc.mean)
    return f"{arm.name}: highest AUC {fixed(best.auc.mean, 3)} ({one_line(best.score, _NAME)})"


def _area_rows(scored: Sequence[tuple[ArmView, MembershipFile]]) -> list[tuple[str, ...]]:
    return [
        (
            one_line(arm.name, _NAME),
            f"AUC, {one_line(area.score, _NAME).replace('_', ' ')}",
            "any" if area.repeats is None else str(area.repeats),
            interval_text(area.auc, 3),
        )
        for arm, file in scored
        for area in file.areas
    ]


def _rate_rows(grids: Sequence[tuple[ArmView, GridFile]]) -> list[tuple[str, ...]]:
    return [
        (
            one_line(arm.name, _NAME),
            f"within {rate.samples:,} samples, chance {percent(rate.chance, 0)}",
            "control" if rate.repeats == 0 else str(rate.repeats),
            interval_text(rate.share, 2),
        )
        for arm, grid in grids
        for rate in grid.extraction
    ]


def _paired(run: RunView, audits: Sequence[AuditedArm]) -> Figure | None:
    """Each arm minus the arm without a loss mask (or the first), passage by passage."""
    costs = {
        arm.name: {
            line.probe_id: (line.repeats, line.nll_nats, line.rouge_l)
            for line in results.continuations
            if line.nll_nats is not None
        }
        for arm, results in audits
    }
    measured = [(arm, results) for arm, results in audits if costs[arm.name]]
    arms = [arm for arm, _ in measured]
    if len(arms) < 2:
        return None
    base = next((arm for arm in arms if arm.name == _WITHOUT), arms[0])
    others = [arm for arm in arms if arm is not base]
    same = {name for arm in arms for name in costs[arm.name]}
    compared = [(arm.name, audit) for arm, results in measured if (audit := results.memorization)]
    if any(same != set(costs[arm.name]) for arm in arms) or unequal_audit(compared):
        return None
    repeats = sorted({count for count, _, _ in costs[base.name].values()})

    def differences(arm: ArmView, column: int) -> list[tuple[int, MeanInterval]]:
        points = []
        for index, count in enumerate(repeats):
            values = [
                float(row[column]) - float(costs[base.name][name][column])
                for name, row in costs[arm.name].items()
                if row[0] == count
            ]
            estimate = interval(values, 0.95)
            points.append(
                (index, MeanInterval(mean=estimate.mean, low=estimate.low, high=estimate.high))
            )
        return points

    titles = ("Cost of the truth, nats/token", "Rouge-L")
    panels: Sequence[Mapping[str, list[tuple[int, MeanInterval]]]] = [
        {arm.name: differences(arm, column) for arm in others} for column in (1, 2)
    ]

    def paint(axes: list[Axes]) -> None:
        for panel_axes, title, panel in zip(axes, titles, panels, strict=True):
            lines = [(arm.name, arm.number, panel[arm.name]) for arm in others]
            _lines(
                panel_axes, lines, list(map(str, repeats)), "occurrences of the passage in the text"
            )
            panel_axes.axhline(0.0, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
            panel_axes.set_title(f"{title}, minus {legend_name(base.name)}", pad=22)
        legend(axes[0], columns=4)

    return Figure(
        key="memory-paired",
        title=f"Memorization against {one_line(base.name, _NAME)}",
        caption=(
            "Each arm minus the reference arm, passage by passage, with 95 % intervals (Student's t "
            "over passages). Above 0 on the left the arm memorizes less. The passages with 0 repeats "
            "show what the arms differ in besides memorization. One training run for each arm: "
            "another seed may give another difference."
        ),
        alt="; ".join(
            f"{arm.name}: {fixed(panels[0][arm.name][-1][1].mean, 3)} nats per true token"
            for arm in others
        ),
        svg=draw_panels("memory-paired", 2.8, paint, 2),
        data=DataTable(
            columns=("arm", "repeats", "cost, nats/token", "Rouge-L"),
            rows=tuple(
                (
                    one_line(arm.name, _NAME),
                    "control" if count == 0 else str(count),
                    *(interval_text(panel[arm.name][index][1], 3) for panel in panels),
                )
                for arm in others
                for index, count in enumerate(repeats)
            ),
            words=1,
        ),
        source=run.files(arms, "audit/continuations.jsonl"),
        command=f"stamm audit {run.name}",
    )


def _lines(axes: Axes, lines: Sequence[Line], places: Sequence[str], name: str) -> None:
    for at, (label, number, points) in enumerate(lines):
        shift = 0.08 * (at - (len(lines) - 1) / 2)
        axes.errorbar(
            [position + shift for position, _ in points],
            [estimate.mean for _, estimate in points],
            yerr=error_bars([estimate for _, estimate in points]), fmt=mark(number) + "-", ms=4.5, lw=1.1, color=series(number),
            label=legend_name(label),
        )  # fmt: skip
    axes.set_xticks(range(len(places)), places)
    axes.set_xlim(-0.5, max(len(places) - 0.5, 0.5))
    axes.set_xlabel(name)


def error_bars(estimates: Sequence[MeanInterval]) -> list[list[float]]:
    """Lengths of the bars below and above each mean; 0 where there is no interval."""
    return [
        [0.0 if estimate.low is None else estimate.mean - estimate.low for estimate in estimates],
        [0.0 if estimate.high is None else estimate.high - estimate.mean for estimate in estimates],
    ]
