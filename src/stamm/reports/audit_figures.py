"""Figures of the audit beyond repeats: the grid, extraction by sampling, membership, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stamm.reports.comparability import unequal_audit
from stamm.reports.figure import DataTable, Figure, thinned
from stamm.reports.formatting import fixed, percent
from stamm.reports.intervals import interval
from stamm.reports.measure_figures import MARKS, interval_text
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw_panels, legend, legend_name
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.runs.schemas.audit import GridCell, GridFile, MembershipFile
from stamm.runs.schemas.evaluation import MeanInterval

_NAME = 40
_WITHOUT = "none"  # the arm without a loss mask, which others are compared with
_SHOWN_CHANCE = 0.5
_SHOWN_SCORE = "min_k_pp"
Line = tuple[str, int, Sequence[tuple[int, MeanInterval]]]
"""Name, number of its colour, and (place on the axis, value)."""


def audit_figures(study: RunResults, rows: int) -> tuple[Figure, ...]:
    """All figures of grid.json and membership.json, and of continuations of several arms.

    rows   of a data table
    """
    found = [_grid(study, arm, arm.measured.grid, rows) for arm in study.arms if arm.measured.grid]
    found.append(_extraction(study))
    found.append(_paired(study))
    return tuple(figure for figure in found if figure is not None)


def safety_table(study: RunResults) -> DataTable | None:
    """Toxicity and refusals of every arm by language; None where they were not measured."""
    rows: list[tuple[str, ...]] = []
    for arm in study.arms:
        file, name = arm.measured.safety, one_line(arm.name, _NAME)
        for tone in file.toxicity if file else ():
            language = one_line(tone.language, _NAME) or "not known"
            measure = f"toxicity, {one_line(tone.kind, _NAME)}"
            shown = interval_text(tone.score, 3), interval_text(tone.toxic, 3)
            rows.append((name, measure, language, f"{tone.texts:,}", *shown))
        for one in file.refusals if file else ():
            label = one_line(one.label, _NAME) or "all prompts"
            language = one_line(one.language, _NAME)
            rows.append(
                (name, f"refusals, {label}", language, f"{one.answers:,}", "",
                 "not recognised" if one.share is None else interval_text(one.share, 3))
            )  # fmt: skip
    return (
        DataTable(
            columns=("arm", "measure", "language", "texts", "mean score", "share toxic or refused"),
            rows=tuple(rows),
            words=3,
        )
        if rows
        else None
    )


def _grid(study: RunResults, arm: ArmResults, grid: GridFile, rows: int) -> Figure | None:
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
        for one, (name, key, kept) in zip(axes, panels, strict=True):
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
            _lines(one, lines, [str(place) for place in places], name)
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
            [_row(cell) for cell in grid.cells], rows, f"{study.inside(arm)}audit/grid.json", 2,
        ),
        source=study.files([arm], "audit/grid.json"),
        command=f"stamm audit {study.folder_of(arm)}",
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


def _extraction(study: RunResults) -> Figure | None:
    grids = [(arm, one) for arm in study.arms if (one := arm.measured.grid) and one.extraction]
    scored = [(arm, file) for arm in study.arms if (file := arm.measured.membership) and file.areas]
    if not grids and not scored:
        return None
    most = {arm.name: max(rate.repeats for rate in one.extraction) for arm, one in grids}
    samples = sorted({rate.samples for _, one in grids for rate in one.extraction})
    repeats = sorted({s.repeats for _, one in scored for s in one.areas if s.repeats})

    def paint(axes: list[Axes]) -> None:
        rates: list[Line] = [
            (
                arm.name,
                arm.number,
                [
                    (samples.index(rate.samples), rate.share)
                    for rate in one.extraction
                    if rate.repeats == most[arm.name] and rate.chance == _SHOWN_CHANCE
                ],
            )
            for arm, one in grids
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
                    for s in one.areas
                    if s.repeats and s.score == _SHOWN_SCORE
                ],
            )
            for arm, one in scored
        ]
        _lines(axes[1], areas, list(map(str, repeats)), "times the passage stood in the text")
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
        alt="; ".join(_best_area(arm, one) for arm, one in scored),
        svg=draw_panels("membership", 3.0, paint, 2),
        data=DataTable(
            columns=("arm", "measure", "repeats", "value"),
            rows=(*_area_rows(scored), *_rate_rows(grids)),
            words=2,
        ),
        source=f"{study.files([arm for arm, _ in scored or grids], 'audit/membership.json')}, grid.json",
        command=f"stamm audit {study.name}",
    )


def _best_area(arm: ArmResults, file: MembershipFile) -> str:
    best = max(file.areas, key=lambda one: one.auc.mean)
    return f"{arm.name}: highest AUC {fixed(best.auc.mean, 3)} ({one_line(best.score, _NAME)})"


def _area_rows(scored: Sequence[tuple[ArmResults, MembershipFile]]) -> list[tuple[str, ...]]:
    return [
        (
            one_line(arm.name, _NAME),
            f"AUC, {one_line(one.score, _NAME).replace('_', ' ')}",
            "any" if one.repeats is None else str(one.repeats),
            interval_text(one.auc, 3),
        )
        for arm, file in scored
        for one in file.areas
    ]


def _rate_rows(grids: Sequence[tuple[ArmResults, GridFile]]) -> list[tuple[str, ...]]:
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


def _paired(study: RunResults) -> Figure | None:
    """Each arm minus the arm without a loss mask (or the first), passage by passage."""
    costs = {
        arm.name: {
            line.probe_id: (line.repeats, line.nll_nats, line.rouge_l)
            for line in arm.measured.continuations
            if line.nll_nats is not None
        }
        for arm in study.arms
    }
    arms = [arm for arm in study.arms if costs[arm.name]]
    if len(arms) < 2:
        return None
    base = next((arm for arm in arms if arm.name == _WITHOUT), arms[0])
    others = [arm for arm in arms if arm is not base]
    same = {name for arm in arms for name in costs[arm.name]}
    if any(same != set(costs[arm.name]) for arm in arms) or unequal_audit(arms):
        return None
    repeats = sorted({count for count, _, _ in costs[base.name].values()})

    def differences(arm: ArmResults, column: int) -> list[tuple[int, MeanInterval]]:
        found = []
        for place, count in enumerate(repeats):
            values = [
                float(row[column]) - float(costs[base.name][name][column])
                for name, row in costs[arm.name].items()
                if row[0] == count
            ]
            one = interval(values, 0.95)
            found.append((place, MeanInterval(mean=one.mean, low=one.low, high=one.high)))
        return found

    titles = ("Cost of the truth, nats/token", "Rouge-L")
    panels: Sequence[Mapping[str, list[tuple[int, MeanInterval]]]] = [
        {arm.name: differences(arm, column) for arm in others} for column in (1, 2)
    ]

    def paint(axes: list[Axes]) -> None:
        for one, title, panel in zip(axes, titles, panels, strict=True):
            lines = [(arm.name, arm.number, panel[arm.name]) for arm in others]
            _lines(one, lines, list(map(str, repeats)), "times the passage stood in the text")
            one.axhline(0.0, color=drawn("muted"), lw=0.9, ls=(0, (2, 2)))
            one.set_title(f"{title}, minus {legend_name(base.name)}", pad=22)
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
                    *(interval_text(panel[arm.name][place][1], 3) for panel in panels),
                )
                for arm in others
                for place, count in enumerate(repeats)
            ),
            words=1,
        ),
        source=study.files(arms, "audit/continuations.jsonl"),
        command=f"stamm audit {study.name}",
    )


def _lines(axes: Axes, lines: Sequence[Line], places: Sequence[str], name: str) -> None:
    for at, (label, number, found) in enumerate(lines):
        shift = 0.08 * (at - (len(lines) - 1) / 2)
        axes.errorbar(
            [place + shift for place, _ in found],
            [one.mean for _, one in found],
            yerr=[[_reach(one, one.low) for _, one in found],
                  [_reach(one, one.high) for _, one in found]],
            fmt=f"{MARKS[number % len(MARKS)]}-", ms=4.5, lw=1.1, color=series(number),
            label=legend_name(label),
        )  # fmt: skip
    axes.set_xticks(range(len(places)), places)
    axes.set_xlim(-0.5, max(len(places) - 0.5, 0.5))
    axes.set_xlabel(name)


def _reach(one: MeanInterval, end: float | None) -> float:
    return 0.0 if end is None else abs(one.mean - end)
