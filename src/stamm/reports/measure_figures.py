"""Figures of evaluations: bits per byte by language, BLiMP by field, memorization."""

from __future__ import annotations

from collections.abc import Callable

from stamm.reports.comparability import blimp_part, unequal_audit, unequal_evaluation, unequal_pairs
from stamm.reports.config import ReportConfig
from stamm.reports.figure import DataTable, Figure
from stamm.reports.formatting import fixed, percent, signed
from stamm.reports.paired import REFERENCE, PairedDifference, paired_difference
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw, draw_panels, legend, legend_name
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.runs.schemas.evaluation import (
    BlimpFile,
    HeldOutFile,
    MeanInterval,
    MemorizationFile,
    RepeatBucket,
    TextLoss,
)

MARKS = "osD^vP"
_LABEL = 24


def language_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Bits per byte of held-out text by language, best compressed first; None without any."""
    held = [(arm, arm.measured.held_out) for arm in study.arms if arm.measured.held_out]
    if not held:
        return None
    by_arm = {arm.name: dict(one.languages) for arm, one in held}
    rows = _languages(held[0][1], config.languages)
    numbers = {arm.name: arm.number for arm, _ in held}

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        for at, (language, _) in enumerate(rows):
            found = [
                table[language].bits_per_byte for table in by_arm.values() if language in table
            ]
            axes.plot([min(found), max(found)], [at, at], color=drawn("line"), lw=3, zorder=1)
        for name, table in by_arm.items():
            there = [(at, table[lang]) for at, (lang, _) in enumerate(rows) if lang in table]
            axes.plot(
                [loss.bits_per_byte for _, loss in there], [at for at, _ in there],
                MARKS[numbers[name] % len(MARKS)], color=series(numbers[name]), ms=5.5,
                label=legend_name(name), alpha=0.9,
            )  # fmt: skip
        axes.set_yticks(
            range(len(rows)),
            [f"{one_line(language, _LABEL)}  ({loss.documents:,})" for language, loss in rows],
        )
        axes.invert_yaxis()
        axes.margins(y=0.5 / len(rows))
        axes.set_xlabel("bits per byte of held-out text; further left is better")
        legend(axes)

    columns = ["language", "documents", "bytes"]
    for name in by_arm:
        columns += [f"{name}, bits per byte", f"{name}, nats per token"]
    every = _languages(held[0][1], len(held[0][1].languages))
    return Figure(
        key="by-language",
        title="Bits per byte by language",
        caption=(
            "How many bits the model needs for a byte of text it never saw, by language and "
            "script, with the number of held-out documents in brackets. A language with few "
            "documents has a large error. Scripts with two or three bytes a letter come out lower for "
            "that reason alone: compare arms within a row, not rows with each other. "
            f"{unequal_evaluation(study.arms)}"
        ).rstrip(),
        alt="; ".join(
            f"{name}: {fixed(one.bits_per_byte, 3)} bits per byte over all languages"
            for name, one in zip(by_arm, (one for _, one in held), strict=True)
        ),
        svg=draw("by-language", 1.0 + 0.2 * len(rows), paint),
        data=DataTable(
            columns=tuple(columns),
            rows=tuple(
                (
                    one_line(language, 60), f"{loss.documents:,}", f"{loss.bytes:,}",
                    *(cell for table in by_arm.values() for cell in _losses(table.get(language))),
                )
                for language, loss in every
            ),
        ),
        source=study.files([arm for arm, _ in held], "evaluate/held_out.json"),
        command=_command(study, "evaluate", [arm for arm, _ in held]),
    )  # fmt: skip


def grammar_figure(study: RunResults) -> Figure | None:
    """BLiMP accuracy by field of grammar, and paired differences; None when it was not run."""
    asked = [(arm, arm.measured.blimp) for arm in study.arms if arm.measured.blimp]
    if not asked:
        return None
    chance = asked[0][1].chance
    fields = ["overall", *sorted({name for _, one in asked for name in one.fields})]
    base, differences = _grammar_differences(study, asked, fields)

    def paint(panels: list[Axes]) -> None:
        panels[0].axvline(100 * chance, color=drawn("muted"), lw=1, ls=(0, (2, 2)))
        panels[0].set_xlabel("% right, ± one standard error; dotted: guessing")
        if len(panels) > 1:
            panels[1].axvline(0.0, color=drawn("muted"), lw=1)
            panels[1].set_xlabel(f"points against {legend_name(base)}, 95 % interval")
        for place, (arm, one) in enumerate(asked):
            scores = one.scores()
            found = [
                [(scores[name].accuracy, scores[name].standard_error) if name in scores else None
                 for name in fields],
                [(d.mean, d.half_width) if (d := differences.get((arm.name, name))) else None
                 for name in fields],
            ]  # fmt: skip
            offset = 0.5 * (place - (len(asked) - 1) / 2) / max(len(asked), 2)
            for axes, values in zip(panels, found, strict=False):
                there = [(at + offset, *value) for at, value in enumerate(values) if value]
                axes.errorbar(
                    [100 * mean for _, mean, _ in there], [at for at, _, _ in there],
                    xerr=[100 * half for _, _, half in there],
                    fmt=MARKS[arm.number % len(MARKS)], ms=5, lw=1.1, color=series(arm.number),
                    label=legend_name(arm.name),
                )  # fmt: skip
        for axes in panels:
            axes.set_yticks(
                range(len(fields)), [one_line(f, _LABEL).replace("_", " ") for f in fields]
            )
            axes.set_ylim(len(fields) - 0.4, -0.6)
        legend(panels[0], columns=4)

    drawn_differences = (
        f" Right: each arm minus {legend_name(base)}. All arms answered the same pairs, so the "
        "difference is taken paradigm by paradigm, and an interval that leaves out 0 shows a "
        "difference between these trained models, even where the bars on the left overlap. "
        "Another seed of training may give another difference."
        if differences
        else " Overlapping bars do not show that two arms are equal."
    )
    return Figure(
        key="grammar",
        title="Grammar: BLiMP minimal pairs",
        caption=(
            f"English sentence pairs that differ in one point of grammar, {blimp_part(study.arms)}: "
            f"how often the right one is more probable, ± one standard error over paradigms. Guessing gives {percent(chance, 0)}."
            f"{_blind(asked[0][1])}"
            f"{drawn_differences} "
            f"{unequal_pairs(study.arms)}"
        ).rstrip(),
        alt="; ".join(
            f"{arm.name}: {percent(one.accuracy)} ± {percent(one.scores()['overall'].standard_error)}"
            for arm, one in asked
        ),
        svg=draw_panels(
            "grammar", 1.1 + 0.36 * len(fields), paint, panels=2 if differences else 1
        ),
        data=DataTable(
            columns=(
                "arm", "field", "pairs", "accuracy", "standard error",
                *((f"against {one_line(base, _LABEL)}, points, ± 95 %",) if differences else ()),
            ),
            rows=tuple(
                (
                    one_line(arm.name, 60), one_line(name, 60), f"{score.pairs:,}",
                    percent(score.accuracy), percent(score.standard_error),
                    *((_points(differences.get((arm.name, name))),) if differences else ()),
                )
                for arm, one in asked
                for name, score in one.scores().items()
            ),
            words=2,
        ),
        source=study.files([arm for arm, _ in asked], "evaluate/blimp.json"),
        command=_command(study, "evaluate", [arm for arm, _ in asked]),
    )  # fmt: skip


def _blind(blimp: BlimpFile) -> str:
    """The best blind baseline as a sentence; "" in files without one."""
    best = blimp.blind.get(blimp.strongest_blind)
    if best is None:
        return ""
    name = one_line(blimp.strongest_blind, _LABEL).replace("_", " ")
    return f" The best baseline that does not use the model, {name}, gives {percent(best.value)}."


def _grammar_differences(
    study: RunResults, asked: list[tuple[ArmResults, BlimpFile]], fields: list[str]
) -> tuple[str, dict[tuple[str, str], PairedDifference]]:
    """The reference arm, and differences to it by arm and field; empty where none can be taken."""
    by_name = {arm.name: one for arm, one in asked}
    base = REFERENCE if REFERENCE in by_name else asked[0][0].name
    if unequal_pairs(study.arms):
        return base, {}
    found = {
        (name, field): paired_difference(by_name[base].of_field(field), one.of_field(field))
        for name, one in by_name.items()
        for field in fields
        if name != base
    }
    return base, {key: value for key, value in found.items() if value is not None}


def _points(difference: PairedDifference | None) -> str:
    if difference is None:
        return ""
    return f"{signed(100 * difference.mean, 1)} ± {fixed(100 * difference.half_width, 1)}"


def memorization_figure(study: RunResults) -> Figure | None:
    """Rouge-L and the cost of the truth against repeats, or None when no arm was audited."""
    audited = [(arm, arm.measured.memorization) for arm in study.arms if arm.measured.memorization]
    audited = [(arm, audit) for arm, audit in audited if audit.buckets]
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
            for place, (arm, audit) in enumerate(audited):
                _memory(axes, audit, measure, repeats, place - (len(audited) - 1) / 2, arm)
            axes.set_xticks(range(len(repeats)), [str(count) for count in repeats])
            axes.set_xlim(-0.5, max(len(repeats) - 0.5, 0.5))
            axes.set_xlabel("times the passage stood in the training text")
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
            f"{_left_out(audited)}{unequal_audit(study.arms)}"
        ).rstrip(),
        alt="; ".join(_fall(arm, audit) for arm, audit in audited),
        svg=draw_panels("memory", 3.0, paint, 2),
        data=_memory_table(audited),
        source=study.files([arm for arm, _ in audited], "audit/memorization.json"),
        command=_command(study, "audit", [arm for arm, _ in audited]),
    )


def _memory(
    axes: Axes,
    audit: MemorizationFile,
    measure: Callable[[RepeatBucket], MeanInterval],
    repeats: list[int],
    shift: float,
    arm: ArmResults,
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
        yerr=[
            [e.mean - e.low if e.low is not None else 0.0 for e in estimates],
            [e.high - e.mean if e.high is not None else 0.0 for e in estimates],
        ],
        fmt=f"{MARKS[arm.number % len(MARKS)]}-", ms=5, lw=1.2, color=colour,
        label=legend_name(arm.name),
    )  # fmt: skip


def _memory_table(audited: list[tuple[ArmResults, MemorizationFile]]) -> DataTable:
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


def _left_out(audited: list[tuple[ArmResults, MemorizationFile]]) -> str:
    """Which planted texts no audit could measure, "" when all were."""
    said = ""
    for arm, audit in audited:
        name = one_line(arm.name, _LABEL)
        if audit.skipped:
            said += f"{name}: {audit.skipped:,} passages were too short to be measured. "
    withdrawn = max(audit.withdrawn for _, audit in audited)
    if withdrawn:
        said += f"{withdrawn:,} planted texts were withdrawn from the corpus and are not measured. "
    return said


def interval_text(estimate: MeanInterval, digits: int) -> str:
    """A mean, with its interval where there is one: "1.50 [1.20, 1.80]"."""
    mean = fixed(estimate.mean, digits)
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} [{fixed(estimate.low, digits)}, {fixed(estimate.high, digits)}]"


def _fall(arm: ArmResults, audit: MemorizationFile) -> str:
    last = audit.buckets[-1]
    said = f"{arm.name}: {fixed(last.nll_nats.mean, 3)} nats per true token"
    if last.repeats:
        said += f" after {last.repeats} repeats"
    if last.nll_minus_control:
        said += f", {fixed(last.nll_minus_control.mean, 3)} against the control"
    return said


def _languages(held_out: HeldOutFile, limit: int) -> list[tuple[str, TextLoss]]:
    known = sorted(held_out.languages.items(), key=lambda item: (-item[1].documents, item[0]))[
        :limit
    ]
    return sorted(known, key=lambda item: (item[1].bits_per_byte, item[0]))


def _losses(loss: TextLoss | None) -> tuple[str, str]:
    if loss is None:
        return "", ""
    return fixed(loss.bits_per_byte, 4), fixed(loss.loss_nats, 4)


def _command(study: RunResults, verb: str, arms: list[ArmResults]) -> str:
    whole = len(arms) == len(study.arms)
    places = [study.name] if whole else [study.folder_of(arm) for arm in arms]
    return " && ".join(f"stamm {verb} {place}" for place in places)
