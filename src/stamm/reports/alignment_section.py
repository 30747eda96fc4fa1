"""Text of the alignment section: verdict, table of arms, cost, prepared data, answers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stamm.base.units import count_text
from stamm.reports.alignment_results import AlignedArm
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, percent, signed
from stamm.reports.intervals import holm
from stamm.reports.reward_models import reward_sentence
from stamm.reports.run_data import RunResults
from stamm.reports.text import one_line
from stamm.reports.training import FINETUNE, Metrics, Series
from stamm.runs.schemas.alignment import (
    AlignmentFile,
    AnswerChange,
    RewardChange,
    SampleAnswersFile,
)
from stamm.runs.schemas.evaluation import MeanInterval
from stamm.runs.schemas.prepared_data import PreparedSummary
from stamm.runs.schemas.training import HELD_OUT_ROWS

BETTER, WORSE, NOT_SHOWN = "better", "worse", "not shown"
_LONGEST_NAME, _LONGEST_SHOWN = 40, 160
_DEFECTS = ("bad_row", "empty_answer", "too_long", "no_loss_tokens")
_LEFT_OUT, _MANY = "not_in_mixture", 0.05
_MOST_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class AlignedLine:
    """One arm of the table.

    verdicts   BETTER, WORSE or NOT_SHOWN by each reward, in the file's order
    adjusted   p of "the win rate is one half" after Holm's correction over the arms, by each reward
    """

    arm: AlignedArm
    verdicts: tuple[str, ...]
    adjusted: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AlignmentSection:
    """Verdict and tables about alignment.

    sentences   findings, most important first
    lines       one per arm
    cost        measures before and after, one row per arm and measure
    changes     loss, accuracy and margin on held-out rows before and after, by arm
    samples     answers of both models to a few prompts, by arm
    prepared    tables of prepared data by folder
    warnings    on prepared data of which many rows cannot be used
    """

    sentences: tuple[str, ...]
    lines: tuple[AlignedLine, ...]
    columns: tuple[str, ...]
    cost: DataTable
    changes: DataTable
    samples: tuple[tuple[str, SampleAnswersFile], ...]
    prepared: tuple[tuple[str, tuple[DataTable, ...]], ...]
    warnings: tuple[str, ...]

    def cells(self, line: AlignedLine) -> tuple[str, ...]:
        """The texts of one line of the table of arms."""
        file = line.arm.file
        rewards = [
            cell for pair in zip(file.rewards, line.verdicts, strict=True) for cell in _won(*pair)
        ]
        return (
            one_line(line.arm.name, _LONGEST_NAME),
            *rewards,
            fixed(file.rewards[0].quantile.after.mean, 3),
            fixed(file.kl.k1.mean, 2),
            _moved(file.tokens, 0),
            "" if file.bits_per_byte is None else signed(file.bits_per_byte.difference.mean, 4),
        )

    def text(self) -> str:
        """The tables, the sentences and the sample answers as plain lines for a terminal."""
        ending = [*self.warnings, *self._changes(), *self._samples()]
        if not self.lines:
            return "\n".join([*self.sentences, *ending])
        # By each reward the verdict and the mean win rate: a terminal has no room for intervals.
        names = [one_line(one.column, 16) for one in self.lines[0].arm.file.rewards]
        rows = [
            ("arm", *(word for name in names for word in (name, "wins")), "quantile", "KL, nats",
             "tokens", "bits/byte"),
            *(
                tuple(cell.partition(" (")[0] for cell in self.cells(line))
                for line in self.lines
            ),
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*table, "", *self.sentences, *ending])

    def _changes(self) -> Iterator[str]:
        rows = [self.changes.columns, *self.changes.rows] if self.changes.rows else []
        yield from [""] if rows else []
        for name, *values in rows:
            yield f"{name:<32}" + "".join(f"{value:>12}" for value in values)

    def _samples(self) -> Iterator[str]:
        for name, file in self.samples:
            for answer in file.answers:
                split = "held out" if answer.held_out else "trained on"
                yield ""
                yield (
                    f"{one_line(name, _LONGEST_NAME)}, {split}: "
                    f"{one_line(answer.question, _LONGEST_SHOWN) or '(no question)'}"
                )
                yield f"  before: {one_line(answer.before, _LONGEST_SHOWN) or '(nothing)'}"
                yield f"  after:  {one_line(answer.after, _LONGEST_SHOWN) or '(nothing)'}"


def alignment_section(study: RunResults) -> AlignmentSection | None:
    """The section about `study`; None for a run without alignment."""
    if not study.is_alignment:
        return None
    lines = _lines(study.aligned)
    rewards = study.aligned[0].file.rewards if study.aligned else ()
    return AlignmentSection(
        sentences=tuple(_sentences(study, lines)),
        lines=lines,
        columns=(
            "arm",
            *(
                column
                for place, one in enumerate(rewards)
                for column in (
                    f"against the start, by {_reward_name(one, place)}",
                    f"win rate, by {_reward_name(one, place)}",
                )
            ),
            "mean quantile", "KL, nats", "tokens", "bits/byte, change",
        ),
        cost=_cost(study),
        changes=_changes(study),
        samples=study.samples,
        warnings=tuple(
            _unusable(name, one.causes, bad, wanted)
            for name, one in study.prepared
            if (wanted := one.read - one.dropped.get(_LEFT_OUT, 0))
            and (bad := sum(one.dropped.get(reason, 0) for reason in _DEFECTS)) > _MANY * wanted
        ),
        prepared=tuple((name, _prepared(one)) for name, one in study.prepared),
    )  # fmt: skip


def interval_text(value: MeanInterval, digits: int) -> str:
    """A mean with its interval: "0.631 (0.602 to 0.660)"."""
    if value.low is None or value.high is None:
        return fixed(value.mean, digits)
    return (
        f"{fixed(value.mean, digits)} ({fixed(value.low, digits)} to {fixed(value.high, digits)})"
    )


def percent_text(value: MeanInterval) -> str:
    """A share with its interval in percent: "63.1 % (60.2 to 66.0)"."""
    if value.low is None or value.high is None:
        return percent(value.mean)
    return f"{percent(value.mean)} ({fixed(100 * value.low, 1)} to {fixed(100 * value.high, 1)})"


def _lines(aligned: Sequence[AlignedArm]) -> tuple[AlignedLine, ...]:
    """Verdicts, with Holm's correction over the arms that have the same reward."""
    columns = {one.column for arm in aligned for one in arm.file.rewards}
    adjusted = {
        column: holm(
            {
                arm.source: one.win_p_value
                for arm in aligned
                for one in arm.file.rewards
                if one.column == column
            }
        )
        for column in columns
    }
    lines = []
    for arm in aligned:
        chances = tuple(adjusted[one.column][arm.source] for one in arm.file.rewards)
        verdicts = tuple(
            _verdict(one, chance, arm.file.confidence)
            for one, chance in zip(arm.file.rewards, chances, strict=True)
        )
        lines.append(AlignedLine(arm=arm, verdicts=verdicts, adjusted=chances))
    return tuple(lines)


def _verdict(reward: RewardChange, adjusted: float, confidence: float) -> str:
    if adjusted > 1 - confidence + 1e-12 or reward.win_rate.mean == 0.5:
        return NOT_SHOWN
    return BETTER if reward.win_rate.mean > 0.5 else WORSE


def _won(reward: RewardChange, verdict: str) -> tuple[str, str]:
    return verdict, percent_text(reward.win_rate)


def _moved(change: AnswerChange, digits: int) -> str:
    return f"{fixed(change.before.mean, digits)} → {fixed(change.after.mean, digits)}"


def _signed(value: MeanInterval, digits: int) -> str:
    if value.low is None or value.high is None:
        return signed(value.mean, digits)
    return f"{signed(value.mean, digits)} ({signed(value.low, digits)} to {signed(value.high, digits)})"


def _reward_name(reward: RewardChange, place: int) -> str:
    name = one_line(reward.column, 24)
    return name if place == 0 else f"{name}, not trained on"


def _sentences(study: RunResults, lines: Sequence[AlignedLine]) -> list[str]:
    if not lines:
        return _not_evaluated(study)
    said = [_lead(lines, 0)]
    if any(len(line.verdicts) > 1 for line in lines):
        name = one_line(lines[0].arm.file.rewards[-1].column, 24)
        lead = _lead(lines, 1)
        said.append(f"By {name}, a reward that training did not see: {lead[:1].lower()}{lead[1:]}")
    elif lines:
        said.append(
            "No second reward was measured: whether the answers are better, or only score higher on "
            "the reward that was trained on, is not known."
        )
    said.append(_certainty(lines))
    cautions: dict[str, list[str]] = {}
    for line in lines:
        name = one_line(line.arm.name, _LONGEST_NAME)
        for caution, detail in _cautions(line):
            cautions.setdefault(caution, []).append(f"{name} ({detail})" if detail else name)
    return [*said, *(f"{caution}: {', '.join(arms)}." for caution, arms in cautions.items())]


def _lead(lines: Sequence[AlignedLine], place: int) -> str:
    groups: dict[str, list[str]] = {}
    for line in lines:
        if place < len(line.verdicts):
            reward = line.arm.file.rewards[place]
            won = f"{one_line(line.arm.name, _LONGEST_NAME)} (wins {percent(reward.win_rate.mean)})"
            groups.setdefault(line.verdicts[place], []).append(won)
    heads = {
        BETTER: "Better than the start model",
        WORSE: "Worse than the start model",
        NOT_SHOWN: "Not shown to differ from the start model",
    }
    return " ".join(f"{heads[key]}: {', '.join(groups[key])}." for key in heads if key in groups)


def _certainty(lines: Sequence[AlignedLine]) -> str:
    file = lines[0].arm.file
    prompts = {line.arm.file.prompts for line in lines}
    seeds = {len(line.arm.file.seeds) for line in lines}
    several = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{min(seeds)} seeds"
    over = (
        f"{several} of training"
        if min(seeds) > 1
        else "one seed of training: what another seed would give is not known"
    )
    family = (
        f" The verdicts are corrected over the {len(lines)} arms (Holm)." if len(lines) > 1 else ""
    )
    return (
        f"Intervals are over {min(prompts):,} test prompts and {over}. A win is a higher reward than "
        f"the start model's answer to the same prompt, a tie counts as half.{family} Not shown is "
        f"not equal. Quantiles are among {file.references:,} further answers of the start model to "
        "each prompt, which neither training nor the comparison has seen."
    )


def _cautions(line: AlignedLine) -> list[tuple[str, str]]:
    """Facts that limit what an arm's win rate means, each with its numbers."""
    file = line.arm.file
    said = []
    if len(line.verdicts) > 1 and line.verdicts[0] == BETTER and line.verdicts[1] == WORSE:
        said.append(("The reward rises while the one that was not trained on falls", ""))
    if (high := file.stopped.difference.high) is not None and high < 0:
        said.append(("Fewer answers end by themselves", _before_after(file.stopped)))
    if (high := file.distinct_4.difference.high) is not None and high < -0.02:
        changed = _before_after(file.distinct_4)
        said.append(("Answers repeat themselves more (distinct 4-grams)", changed))
    if file.kl.recoded > 0.05:
        said.append(
            (
                "KL is approximate, because answers are encoded otherwise than they were sampled",
                percent(file.kl.recoded),
            )
        )
    if (most := max(one.ties for one in file.rewards)) > 0.1:
        said.append(
            (
                "The closed-form curve is exact for rewards without ties, and of the compared pairs "
                "many are ties",
                percent(most),
            )
        )
    if file.left_out:
        gone = ", ".join(
            f"{count:,} {one_line(key, 60)}" for key, count in list(file.left_out.items())[:5]
        )
        said.append(("Left out", gone))
    return said


def _before_after(change: AnswerChange) -> str:
    return f"{percent(change.before.mean)} → {percent(change.after.mean)}"


def _not_evaluated(study: RunResults) -> list[str]:
    tuned = [arm for arm in study.arms if arm.training.kind == FINETUNE]
    rows = sum(one.kept for _, one in study.prepared)
    said = []
    for arm in tuned:
        metrics, summary = arm.training.metrics, arm.training.summary
        steps = f", {summary.steps:,} steps" if summary else ""
        if metrics and metrics.loss.values:
            first, last = metrics.loss.values[0], metrics.loss.values[-1]
            change = f": loss {fixed(first, 3)} → {fixed(last, 3)} nats per supervised token"
        else:
            change = ""
        said.append(f"{one_line(arm.name, _LONGEST_NAME)} was fine-tuned{steps}{change}.")
        if summary and summary.best_step is not None:
            best = f"{summary.best_step:,}, which has the lowest loss on held-out rows, are kept"
            said.append(f"The weights of step {best}.")
    if not tuned:
        said.append("No model was fine-tuned yet.")
    if rows:
        said.append(f"{rows:,} rows of data were prepared.")
    said = [*map(reward_sentence, study.reward_models), *said]
    if len(study.reward_models) < max(len(tuned), 1):
        said.append("No answers were compared with the start model's.")
    return said


def _validated(metrics: Metrics) -> dict[str, Series]:
    """Loss, accuracy and margin of held-out rows by step, those that were measured."""
    return {
        name.removesuffix("_nats"): metrics.evaluations[key]
        for name in ("loss_nats", "loss", "accuracy", "margin")
        if (key := f"evaluate/{HELD_OUT_ROWS}/{name}") in metrics.evaluations
    }


def _changes(study: RunResults) -> DataTable:
    """Loss, accuracy and margin of held-out rows, before training and with the weights that are kept."""
    rows = []
    for arm in study.arms:
        metrics, summary = arm.training.metrics, arm.training.summary
        kept = summary.best_step if summary else None
        for name, series in (_validated(metrics) if metrics else {}).items():
            at = dict(zip(series.steps, series.values, strict=True))
            last = series.values[-1] if kept is None else at.get(kept, series.values[-1])
            label = f"{one_line(arm.name, _LONGEST_NAME)}: {name}"
            rows.append((label, fixed(series.values[0], 3), fixed(last, 3)))
    return DataTable(columns=("on held-out rows", "before", "after"), rows=tuple(rows), words=1)


def _cost(study: RunResults) -> DataTable:
    """Measures before and after: the rows of each measure together, one per arm."""
    by_measure: dict[str, list[tuple[str, ...]]] = {}
    measured = [(arm.name, _cost_rows(arm.file)) for arm in study.aligned]
    measured += _memorized_rows(study)
    for name, rows in measured:
        for measure, *cells in rows:
            row = (measure, one_line(name, _LONGEST_NAME), *cells)
            by_measure.setdefault(measure, []).append(row)
    return DataTable(
        columns=("measure", "arm", "start", "aligned", "difference"),
        rows=tuple(row for rows in by_measure.values() for row in rows),
        words=2,
        note="In brackets intervals; those of differences are paired. KL: of the aligned model to the "
        "start model, in nats per answer, by the mean log-ratio (k1), and by an estimator that is "
        "never negative (k3): where they differ by much, a few answers decide. Below optimum: mean "
        "quantile that the optimal policy of the same KL has more. Length slope: tokens from the "
        "lowest to the highest quantile, within prompts. Stopped: share of answers that end with a "
        "stop token. Distinct-4: share of distinct 4-grams of tokens in an answer. Bits per byte are "
        "of held-out text. Memorized: nats per token of planted passages, repeated so many times, "
        "minus those of passages never seen; below 0 is remembered.",
    )


def _memorized_rows(study: RunResults) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Memorization before and after of audited arms whose answers were not compared."""
    if study.start_memorization is None:
        return []
    compared = {arm.name for arm in study.aligned if arm.file.memorization}
    start = {one.repeats: one.nll_minus_control for one in study.start_memorization.buckets}
    return [
        (
            arm.name,
            [
                _memorized_row(one.repeats, before, after)
                for one in audit.buckets[:_MOST_ROWS]
                if (before := start.get(one.repeats)) and (after := one.nll_minus_control)
            ],
        )
        for arm in study.arms
        if (audit := arm.measured.memorization) and arm.name not in compared
    ]


def _memorized_row(repeats: int, before: MeanInterval, after: MeanInterval) -> tuple[str, ...]:
    return (
        f"memorized, {repeats:,} times",
        fixed(before.mean, 3),
        fixed(after.mean, 3),
        signed(after.mean - before.mean, 3),
    )


def _cost_rows(file: AlignmentFile) -> list[tuple[str, ...]]:
    kl = file.kl
    rows = [
        *(_row(f"mean {one_line(r.column, 24)}", r.reward, 3) for r in file.rewards),
        _row("mean quantile", file.rewards[0].quantile, 3),
        ("KL, k1", "", interval_text(kl.k1, 3), ""),
        ("KL, k3", "", "not finite" if kl.k3 is None else interval_text(kl.k3, 3), ""),
        ("KL per token", "", interval_text(kl.per_token, 4), ""),
        ("below optimum", "", interval_text(file.optimum.below, 3), ""),
        _row("tokens", file.tokens, 1),
        *([_row("length slope", file.length_slope, 1)] if file.length_slope else []),
        _row("stopped", file.stopped, 3),
        _row("distinct-4", file.distinct_4, 3),
    ]
    if file.bits_per_byte is not None:
        rows.append(_row("bits per byte", file.bits_per_byte, 4))
    rows += [
        _memorized_row(one.repeats, one.before, one.after) for one in file.memorization[:_MOST_ROWS]
    ]
    return rows


def _row(name: str, change: AnswerChange, digits: int) -> tuple[str, ...]:
    return (
        name,
        fixed(change.before.mean, digits),
        fixed(change.after.mean, digits),
        _signed(change.difference, digits),
    )


def _unusable(name: str, causes: Mapping[str, int], bad: int, rows: int) -> str:
    """The rows that cannot be used, with the most frequent reasons, which are untrusted text."""
    reasons = "; ".join(f"{one_line(text, 80)} ({n:,})" for text, n in list(causes.items())[:2])
    return f"{name}: {bad:,} of {rows:,} rows ({percent(bad / rows)}) cannot be used: {reasons}."


def _prepared(summary: PreparedSummary) -> tuple[DataTable, ...]:
    """Rows and splits, reasons, and licences of prepared data."""
    splits = tuple(
        (
            one_line(name, 24), f"{one.examples:,}", f"{one.answers:,}", count_text(one.tokens),
            count_text(one.supervised_tokens), f"{one.longest:,}", f"{one.answers_with_reward:,}",
        )
        for name, one in list(summary.splits.items())[:_MOST_ROWS]
    )  # fmt: skip
    fates = [("kept", summary.kept), *sorted(summary.dropped.items(), key=lambda item: -item[1])]
    licences = sorted(summary.licences.items(), key=lambda item: (-item[1], item[0]))
    refused = ", ".join(one_line(one, 40) for one in summary.refused_licences[:10])
    return (
        DataTable(
            columns=(
                "split", "examples", "answers", "tokens", "tokens of the loss", "longest, tokens",
                "with a reward",
            ),
            rows=splits,
            note=f"{one_line(summary.kind, 24)} rows in the {one_line(summary.chat_format, 24)} chat "
            f"format, at most {summary.context:,} tokens.",
        ),
        _counted("rows", fates, summary.read),
        _counted(
            "licence",
            [(name or "not stated", count) for name, count in licences],
            summary.kept,
            f"Refused: {refused}." if refused else "",
        ),
        *_mixture(summary),
        *_listed("why rows cannot be used", summary.causes),
        *_listed("column or key that was not used", summary.unknown_keys),
    )  # fmt: skip


def _mixture(summary: PreparedSummary) -> Iterator[DataTable]:
    """A table of the sources of a mixture."""
    examples = sum(share.examples for share in summary.mixture)
    if examples:
        yield DataTable(
            columns=("source", "weight", "share", "examples", "rows", "times read", "tokens of the loss"),
            rows=tuple(
                (
                    one_line(share.source, 60), percent(share.share), percent(share.examples / examples),
                    f"{share.examples:,}", f"{share.read:,}", f"{share.epochs:.3g}",
                    count_text(share.supervised_tokens),
                )
                for share in summary.mixture[:_MOST_ROWS]
            ),
        )  # fmt: skip


def _listed(name: str, counts: Mapping[str, int]) -> Iterator[DataTable]:
    """A table of untrusted texts with their rows; none for no text."""
    if counts:
        rows = [(one_line(text, 120), f"{n:,}") for text, n in list(counts.items())[:_MOST_ROWS]]
        yield DataTable(columns=(name, "rows"), rows=tuple(rows))


def _counted(name: str, counts: Sequence[tuple[str, int]], whole: int, note: str = "") -> DataTable:
    rest = len(counts) - _MOST_ROWS
    more = f"{rest:,} further rows are in summary.json. " if rest > 0 else ""
    return DataTable(
        columns=(name, "count", "share"),
        rows=tuple(
            (one_line(key, 60).replace("_", " "), f"{n:,}", percent(n / whole if whole else 0.0))
            for key, n in counts[:_MOST_ROWS]
        ),
        note=f"{more}{note}".strip(),
    )
