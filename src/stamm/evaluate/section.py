"""Section "Held-out text": bits per byte by language, BLiMP by field of grammar, evaluation tasks, learning curves."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.evaluate.records import BlimpFile, HeldOutFile, TextLoss
from stamm.evaluate.results import Evaluated, EvaluatedArms, read_evaluated_arms
from stamm.evaluate.task_comparison import arm_differences, difference_table
from stamm.evaluate.task_curves import curve_figures
from stamm.evaluate.task_results import task_tables
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, percent, signed
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pages.svg_figure import Axes, draw, draw_panels, legend, legend_name
from stamm.pages.text import one_line, unequal_settings
from stamm.pages.theme import drawn, mark, series
from stamm.runs.run_view import ALIGNMENT, IMPORTED, RESULTS, STUDY, ArmView, RunView
from stamm.statistics.paired import REFERENCE, PairedDifference, paired_difference

BLIMP_PAIRS = 67_000
_LABEL = 24


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Results on held-out text and evaluation tasks; the page of a study names the arms without them.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    arms = read_evaluated_arms(run)
    if not _is_shown(run.kind, [evaluated for _, evaluated in arms]):
        return ()
    is_results = run.kind == RESULTS
    figures = (language_figure(run, arms, config), grammar_figure(run, arms))
    context = {
        "run": run,
        "is_results": is_results,
        "figures": (*(figure for figure in figures if figure), *curve_figures(run, arms)),
        "tasks": task_tables(
            [(arm.name, evaluated.tasks) for arm, evaluated in arms],
            [
                (arm.name, (held_out,))
                for arm, evaluated in arms
                if (held_out := evaluated.held_out)
            ],
        ),
        "differences": difference_table(arm_differences(arms)),
        "not_evaluated": [
            arm for arm, evaluated in arms if evaluated.held_out is None and not is_results
        ],
    }
    html = fill(
        "evaluate.html", context, "stamm.evaluate", excerpt_characters=config.excerpt_characters
    )
    files = [file for _, evaluated in arms for file in (*evaluated.tasks, evaluated.blimp)]
    hashes = sorted({file.model_sha256 for file in files if file and file.model_sha256})
    facts = tuple(f"weights {one_line(sha256[:12], 120)}" for sha256 in hashes if is_results)
    return (Section(key="languages", title="Held-out text", html=html, facts=facts),)


def _is_shown(kind: str, measured: Sequence[Evaluated]) -> bool:
    if kind == ALIGNMENT:
        return any(
            evaluated.held_out or evaluated.blimp or evaluated.tasks or evaluated.curves
            for evaluated in measured
        )
    if kind == RESULTS:
        return any(evaluated.blimp or evaluated.tasks for evaluated in measured)
    return kind in (STUDY, IMPORTED)


def language_figure(run: RunView, arms: EvaluatedArms, config: ReportConfig) -> Figure | None:
    """Bits per byte of held-out text by language, best compressed first; None without any."""
    held = [(arm, evaluated.held_out) for arm, evaluated in arms if evaluated.held_out]
    if not held:
        return None
    by_arm = {arm.name: dict(held_out.languages) for arm, held_out in held}
    rows = _languages(held[0][1], config.languages)
    numbers = {arm.name: arm.number for arm, _ in held}

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        for at, (language, _) in enumerate(rows):
            bits = [table[language].bits_per_byte for table in by_arm.values() if language in table]
            axes.plot([min(bits), max(bits)], [at, at], color=drawn("line"), lw=3, zorder=1)
        for name, table in by_arm.items():
            there = [(at, table[lang]) for at, (lang, _) in enumerate(rows) if lang in table]
            axes.plot(
                [loss.bits_per_byte for _, loss in there], [at for at, _ in there],
                mark(numbers[name]), color=series(numbers[name]), ms=5.5,
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
            f"{unequal_evaluation(arms)}"
        ).rstrip(),
        alt="; ".join(
            f"{name}: {fixed(held_out.bits_per_byte, 3)} bits per byte over all languages"
            for name, held_out in zip(by_arm, (held_out for _, held_out in held), strict=True)
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
        source=run.files([arm for arm, _ in held], "evaluate/held_out.json"),
        command=run.command("evaluate", [arm for arm, _ in held]),
    )  # fmt: skip


def grammar_figure(run: RunView, arms: EvaluatedArms) -> Figure | None:
    """BLiMP accuracy by field of grammar, and paired differences; None when it was not run."""
    asked = [(arm, evaluated.blimp) for arm, evaluated in arms if evaluated.blimp]
    if not asked:
        return None
    chance = asked[0][1].chance
    fields = ["overall", *sorted({name for _, blimp in asked for name in blimp.fields})]
    base, differences = _grammar_differences(arms, asked, fields)

    def paint(panels: list[Axes]) -> None:
        panels[0].axvline(100 * chance, color=drawn("muted"), lw=1, ls=(0, (2, 2)))
        panels[0].set_xlabel("% right, ± one standard error; dotted: guessing")
        if len(panels) > 1:
            panels[1].axvline(0.0, color=drawn("muted"), lw=1)
            panels[1].set_xlabel(f"points against {legend_name(base)}, 95 % interval")
        for index, (arm, blimp) in enumerate(asked):
            scores = blimp.scores()
            panel_values = [
                [(scores[name].accuracy, scores[name].standard_error) if name in scores else None
                 for name in fields],
                [(d.mean, d.half_width) if (d := differences.get((arm.name, name))) else None
                 for name in fields],
            ]  # fmt: skip
            offset = 0.5 * (index - (len(asked) - 1) / 2) / max(len(asked), 2)
            for axes, values in zip(panels, panel_values, strict=False):
                there = [(at + offset, *value) for at, value in enumerate(values) if value]
                axes.errorbar(
                    [100 * mean for _, mean, _ in there], [at for at, _, _ in there],
                    xerr=[100 * half for _, _, half in there],
                    fmt=mark(arm.number), ms=5, lw=1.1, color=series(arm.number),
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
        "difference is taken paradigm by paradigm, and an interval that excludes 0 shows a "
        "difference between these trained models, even where the bars on the left overlap. "
        "Another seed of training may give another difference."
        if differences
        else " Overlapping bars do not show that two arms are equal."
    )
    return Figure(
        key="grammar",
        title="Grammar: BLiMP minimal pairs",
        caption=(
            f"English sentence pairs that differ in one point of grammar, {blimp_part(arms)}: "
            f"how often the right one is more probable, ± one standard error over paradigms. Guessing gives {percent(chance, 0)}."
            f"{_blind(asked[0][1])}"
            f"{drawn_differences} "
            f"{unequal_pairs(arms)}"
        ).rstrip(),
        alt="; ".join(
            f"{arm.name}: {percent(blimp.accuracy)} ± {percent(blimp.scores()['overall'].standard_error)}"
            for arm, blimp in asked
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
                for arm, blimp in asked
                for name, score in blimp.scores().items()
            ),
            words=2,
        ),
        source=run.files([arm for arm, _ in asked], "evaluate/blimp.json"),
        command=run.command("evaluate", [arm for arm, _ in asked]),
    )  # fmt: skip


def _blind(blimp: BlimpFile) -> str:
    """The best blind baseline as a sentence; "" in files without one."""
    best = blimp.blind.get(blimp.strongest_blind)
    if best is None:
        return ""
    name = one_line(blimp.strongest_blind, _LABEL).replace("_", " ")
    return f" The best baseline that does not use the model, {name}, gives {percent(best.value)}."


def _grammar_differences(
    arms: EvaluatedArms, asked: list[tuple[ArmView, BlimpFile]], fields: list[str]
) -> tuple[str, dict[tuple[str, str], PairedDifference]]:
    """The reference arm, and differences to it by arm and field; empty where none can be taken."""
    by_name = {arm.name: blimp for arm, blimp in asked}
    base = REFERENCE if REFERENCE in by_name else asked[0][0].name
    if unequal_pairs(arms):
        return base, {}
    paired = {
        (name, field): paired_difference(by_name[base].of_field(field), blimp.of_field(field))
        for name, blimp in by_name.items()
        for field in fields
        if name != base
    }
    return base, {key: value for key, value in paired.items() if value is not None}


def _points(difference: PairedDifference | None) -> str:
    if difference is None:
        return ""
    return f"{signed(100 * difference.mean, 1)} ± {fixed(100 * difference.half_width, 1)}"


def _languages(held_out: HeldOutFile, limit: int) -> list[tuple[str, TextLoss]]:
    known = sorted(held_out.languages.items(), key=lambda item: (-item[1].documents, item[0]))[
        :limit
    ]
    return sorted(known, key=lambda item: (item[1].bits_per_byte, item[0]))


def _losses(loss: TextLoss | None) -> tuple[str, str]:
    if loss is None:
        return "", ""
    return fixed(loss.bits_per_byte, 4), fixed(loss.loss_nats, 4)


def unequal_evaluation(arms: EvaluatedArms) -> str:
    """A sentence when held-out text was read in different windows; "" when losses compare."""
    return unequal_settings(
        "Held-out losses",
        [
            (arm.name, f"context {held_out.context:,}, overlap {held_out.overlap:,}")
            for arm, evaluated in arms
            if (held_out := evaluated.held_out)
        ],
    )


def unequal_pairs(arms: EvaluatedArms) -> str:
    """A sentence when arms were asked different BLiMP pairs; "" when accuracies compare."""
    return unequal_settings(
        "BLiMP accuracies",
        [
            (arm.name, f"{blimp.pairs_per_paradigm:,} pairs per paradigm")
            for arm, evaluated in arms
            if (blimp := evaluated.blimp)
        ],
    )


def blimp_part(arms: EvaluatedArms) -> str:
    """The part of BLiMP that was asked: "1,005 of the 67,000 pairs of BLiMP"; "" without any."""
    counts = sorted({evaluated.blimp.pairs for _, evaluated in arms if evaluated.blimp})
    if not counts:
        return ""
    asked = " or ".join(f"{count:,}" for count in counts)
    return f"{asked} of the {BLIMP_PAIRS:,} pairs of BLiMP"
