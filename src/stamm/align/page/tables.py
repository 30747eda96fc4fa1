"""Text of the alignment section: verdict, table of arms, cost, prepared data, answers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stamm.align.page.results import AlignedArm, AlignmentResults
from stamm.align.records import (
    AlignmentFile,
    AnswerChange,
    HeldOutShare,
    PreparedSummary,
    RewardAccuracyFile,
    RewardChange,
    SampleAnswersFile,
)
from stamm.base.units import count_text
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed, percent, signed, table_lines
from stamm.pages.text import one_line
from stamm.pretrain.records import HELD_OUT_ROWS
from stamm.runs.metric_series import Metrics, Series
from stamm.runs.run_view import FINETUNE
from stamm.statistics.estimates import MeanInterval
from stamm.statistics.intervals import holm

BETTER, WORSE, NOT_SHOWN = "better", "worse", "not shown"
_LONGEST_NAME, _LONGEST_SHOWN = 40, 160
_DEFECTS = ("bad_row", "empty_answer", "too_long", "no_loss_tokens", "truncated_file")
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
    warnings    on prepared data of which many rows cannot be used, or of which a file ends in the middle
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
            cell
            for reward, verdict in zip(file.rewards, line.verdicts, strict=True)
            for cell in (verdict, percent_text(reward.win_rate))
        ]
        return (
            one_line(line.arm.name, _LONGEST_NAME),
            *rewards,
            fixed(file.rewards[0].quantile.after.mean, 3),
            fixed(file.kl.k1.mean, 2),
            moved_text(file.tokens, 0),
            "" if file.bits_per_byte is None else signed(file.bits_per_byte.difference.mean, 4),
        )

    def table(self) -> list[tuple[int, tuple[str, ...], str]]:
        """Number, texts and mark of each line."""
        return [(line.arm.number, self.cells(line), "") for line in self.lines]

    def text(self) -> str:
        """The tables, the sentences and the sample answers as plain lines for a terminal."""
        ending = [*self.warnings, *self._changes(), *self._samples()]
        if not self.lines:
            return "\n".join([*self.sentences, *ending])
        # By each reward the verdict and the mean win rate: a terminal has no room for intervals.
        names = [one_line(reward.column, 16) for reward in self.lines[0].arm.file.rewards]
        rows = [
            ("arm", *(word for name in names for word in (name, "wins")), "quantile", "KL, nats",
             "tokens", "bits/byte"),
            *(
                tuple(cell.partition(" (")[0] for cell in self.cells(line))
                for line in self.lines
            ),
        ]  # fmt: skip
        return "\n".join([*table_lines(rows, len(rows[0])), "", *self.sentences, *ending])

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


def alignment_tables(results: AlignmentResults) -> AlignmentSection:
    """Verdict and tables about what was aligned."""
    lines = _lines(results.aligned)
    rewards = results.aligned[0].file.rewards if results.aligned else ()
    return AlignmentSection(
        sentences=tuple(_sentences(results, lines)),
        lines=lines,
        columns=(
            "arm",
            *(
                f"{what}, by {_reward_name(reward, position)}"
                for position, reward in enumerate(rewards)
                for what in ("against the start", "win rate")
            ),
            "mean quantile", "KL, nats", "tokens", "bits/byte, change",
        ),
        cost=_cost(results),
        changes=_changes(results),
        samples=results.samples,
        warnings=(
            *(
                _unusable(name, summary.causes, bad, wanted)
                for name, summary in results.prepared
                if (wanted := summary.read - summary.dropped.get(_LEFT_OUT, 0))
                and (bad := sum(summary.dropped.get(reason, 0) for reason in _DEFECTS)) > _MANY * wanted
            ),
            *(f"{name}: {cut}" for name, summary in results.prepared if (cut := summary.truncation())),
        ),
        prepared=tuple((name, _prepared(summary)) for name, summary in results.prepared),
    )  # fmt: skip


def interval_text(value: MeanInterval, digits: int) -> str:
    """A mean with its interval: "0.631 (0.602 to 0.660)"."""
    return _with_interval(value, lambda number: fixed(number, digits))


def percent_text(value: MeanInterval) -> str:
    """A share with its interval in percent: "63.1 % (60.2 to 66.0)"."""
    return _with_interval(value, lambda share: fixed(100 * share, 1), percent)


def _with_interval(
    value: MeanInterval, text: Callable[[float], str], mean: Callable[[float], str] | None = None
) -> str:
    """The mean, and the ends of the interval in brackets where there is one."""
    shown = (mean or text)(value.mean)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({text(value.low)} to {text(value.high)})"


def _lines(aligned: Sequence[AlignedArm]) -> tuple[AlignedLine, ...]:
    """Verdicts, with Holm's correction over the arms that have the same reward."""
    columns = {reward.column for arm in aligned for reward in arm.file.rewards}
    adjusted = {
        column: holm(
            {
                arm.source: reward.win_p_value
                for arm in aligned
                for reward in arm.file.rewards
                if reward.column == column
            }
        )
        for column in columns
    }
    lines = []
    for arm in aligned:
        chances = tuple(adjusted[reward.column][arm.source] for reward in arm.file.rewards)
        verdicts = tuple(
            _verdict(reward, chance, arm.file.confidence)
            for reward, chance in zip(arm.file.rewards, chances, strict=True)
        )
        lines.append(AlignedLine(arm=arm, verdicts=verdicts, adjusted=chances))
    return tuple(lines)


def _verdict(reward: RewardChange, adjusted: float, confidence: float) -> str:
    if adjusted > 1 - confidence + 1e-12 or reward.win_rate.mean == 0.5:
        return NOT_SHOWN
    return BETTER if reward.win_rate.mean > 0.5 else WORSE


def moved_text(change: AnswerChange, digits: int) -> str:
    """Means of the start model and the aligned one: "0.500 → 0.631"."""
    return f"{fixed(change.before.mean, digits)} → {fixed(change.after.mean, digits)}"


def _signed(value: MeanInterval, digits: int) -> str:
    return _with_interval(value, lambda number: signed(number, digits))


def _reward_name(reward: RewardChange, position: int) -> str:
    name = one_line(reward.column, 24)
    return name if position == 0 else f"{name}, not trained on"


def _sentences(results: AlignmentResults, lines: Sequence[AlignedLine]) -> list[str]:
    if not lines:
        return _not_evaluated(results)
    sentences = [_lead(lines, 0)]
    if any(len(line.verdicts) > 1 for line in lines):
        name = one_line(lines[0].arm.file.rewards[-1].column, 24)
        lead = _lead(lines, 1)
        sentences.append(
            f"By {name}, a reward that training did not see: {lead[:1].lower()}{lead[1:]}"
        )
    elif lines:
        sentences.append(
            "No second reward was measured: whether the answers are better, or only score higher on "
            "the reward that was trained on, is not known."
        )
    sentences.append(_certainty(lines))
    cautions: dict[str, list[str]] = {}
    for line in lines:
        name = one_line(line.arm.name, _LONGEST_NAME)
        for caution, detail in _cautions(line):
            cautions.setdefault(caution, []).append(f"{name} ({detail})" if detail else name)
    return [*sentences, *(f"{caution}: {', '.join(arms)}." for caution, arms in cautions.items())]


def _lead(lines: Sequence[AlignedLine], position: int) -> str:
    groups: dict[str, list[str]] = {}
    for line in lines:
        if position < len(line.verdicts):
            reward = line.arm.file.rewards[position]
            won = f"{one_line(line.arm.name, _LONGEST_NAME)} (wins {percent(reward.win_rate.mean)})"
            groups.setdefault(line.verdicts[position], []).append(won)
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
    cautions = []
    if len(line.verdicts) > 1 and line.verdicts[0] == BETTER and line.verdicts[1] == WORSE:
        cautions.append(("The reward rises while the one that was not trained on falls", ""))
    if (high := file.stopped.difference.high) is not None and high < 0:
        cautions.append(("Fewer answers end by themselves", _before_after(file.stopped)))
    if (high := file.distinct_4.difference.high) is not None and high < -0.02:
        changed = _before_after(file.distinct_4)
        cautions.append(("Answers repeat themselves more (distinct 4-grams)", changed))
    if file.kl.recoded > 0.05:
        cautions.append(
            (
                "KL is approximate, because answers are encoded otherwise than they were sampled",
                percent(file.kl.recoded),
            )
        )
    if (most := max(reward.ties for reward in file.rewards)) > 0.1:
        cautions.append(
            (
                "The closed-form curve is exact for rewards without ties, and of the compared pairs "
                "many are ties",
                percent(most),
            )
        )
    if file.left_out:
        left_out = ", ".join(
            f"{count:,} {one_line(key, 60)}" for key, count in list(file.left_out.items())[:5]
        )
        cautions.append(("Left out", left_out))
    return cautions


def _before_after(change: AnswerChange) -> str:
    return f"{percent(change.before.mean)} → {percent(change.after.mean)}"


def _not_evaluated(results: AlignmentResults) -> list[str]:
    tuned = [(arm, training) for arm, training in results.trained if arm.kind == FINETUNE]
    rows = sum(summary.kept for _, summary in results.prepared)
    sentences = []
    for arm, training in tuned:
        metrics, summary = training.metrics, training.summary
        steps = f", {summary.steps:,} steps" if summary else ""
        if metrics and metrics.loss.values:
            first, last = metrics.loss.values[0], metrics.loss.values[-1]
            change = f": loss {fixed(first, 3)} → {fixed(last, 3)} nats per supervised token"
        else:
            change = ""
        sentences.append(f"{one_line(arm.name, _LONGEST_NAME)} was fine-tuned{steps}{change}.")
        if summary and summary.best_step is not None:
            best = f"{summary.best_step:,}, which has the lowest loss on held-out rows, are kept"
            sentences.append(f"The weights of step {best}.")
    if not tuned:
        sentences.append("No model was fine-tuned yet.")
    if rows:
        sentences.append(f"{rows:,} rows of data were prepared.")
    sentences = [*(reward_sentence(*model) for model in results.reward_models), *sentences]
    if len(results.reward_models) < max(len(tuned), 1):
        sentences.append("No answers were compared with the start model's.")
    return sentences


def reward_sentence(arm: str, file: RewardAccuracyFile) -> str:
    """The share of held-out pairs that a reward model orders right, and whether it exceeds chance."""
    name = one_line(arm, _LONGEST_NAME)
    if file.accuracy.share is None:
        return f"The reward model {name} was not tested: no pairs were held out."
    shown = (
        ""
        if file.accuracy.low > 0.5
        else " The interval contains 50 %: it is not shown to order pairs better than chance."
        if file.accuracy.high >= 0.5
        else " It orders pairs worse than chance."
    )
    return (
        f"The reward model {name} prefers the chosen answer in {_share(file.accuracy)} of "
        f"{file.pairs:,} held-out pairs; a rule that prefers the longer answer does in "
        f"{_share(file.longer)}. In brackets 95 % Wilson intervals over pairs.{shown}"
    )


def _share(value: HeldOutShare) -> str:
    if value.share is None:
        return "none"
    return f"{percent(value.share)} ({fixed(100 * value.low, 1)} to {fixed(100 * value.high, 1)})"


def _validated(metrics: Metrics) -> dict[str, Series]:
    """Loss, accuracy and margin of held-out rows by step, those that were measured."""
    return {
        name.removesuffix("_nats"): metrics.evaluations[key]
        for name in ("loss_nats", "loss", "accuracy", "margin")
        if (key := f"evaluate/{HELD_OUT_ROWS}/{name}") in metrics.evaluations
    }


def _changes(results: AlignmentResults) -> DataTable:
    """Loss, accuracy and margin of held-out rows, before training and with the weights that are kept."""
    rows = []
    for arm, training in results.trained:
        metrics, summary = training.metrics, training.summary
        kept = summary.best_step if summary else None
        for name, series in (_validated(metrics) if metrics else {}).items():
            at = dict(zip(series.steps, series.values, strict=True))
            last = series.values[-1] if kept is None else at.get(kept, series.values[-1])
            label = f"{one_line(arm.name, _LONGEST_NAME)}: {name}"
            rows.append((label, fixed(series.values[0], 3), fixed(last, 3)))
    return DataTable(columns=("on held-out rows", "before", "after"), rows=tuple(rows), words=1)


def _cost(results: AlignmentResults) -> DataTable:
    """Measures before and after: the rows of each measure together, one per arm."""
    by_measure: dict[str, list[tuple[str, ...]]] = {}
    measured = [(arm.name, _cost_rows(arm.file)) for arm in results.aligned]
    measured += _memorized_rows(results)
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


def _memorized_rows(results: AlignmentResults) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Memorization before and after of audited arms whose answers were not compared."""
    compared = {arm.name for arm in results.aligned if arm.file.memorization}
    rows = []
    for name, start, audit in results.memorized:
        before = {bucket.repeats: bucket.nll_minus_control for bucket in start.buckets}
        if name not in compared:
            pairs = [
                (bucket.repeats, before.get(bucket.repeats), bucket.nll_minus_control)
                for bucket in audit.buckets[:_MOST_ROWS]
            ]
            rows.append((name, [_memorized_row(n, a, b) for n, a, b in pairs if a and b]))
    return rows


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
        _memorized_row(change.repeats, change.before, change.after)
        for change in file.memorization[:_MOST_ROWS]
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
            one_line(name, 24), f"{split.examples:,}", f"{split.answers:,}", count_text(split.tokens),
            count_text(split.supervised_tokens), f"{split.longest:,}", f"{split.answers_with_reward:,}",
        )
        for name, split in list(summary.splits.items())[:_MOST_ROWS]
    )  # fmt: skip
    fates = [("kept", summary.kept), *sorted(summary.dropped.items(), key=lambda item: -item[1])]
    licences = sorted(summary.licences.items(), key=lambda item: (-item[1], item[0]))
    refused = ", ".join(one_line(licence, 40) for licence in summary.refused_licences[:10])
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
    rest_note = f"{rest:,} further rows are in summary.json. " if rest > 0 else ""
    return DataTable(
        columns=(name, "count", "share"),
        rows=tuple(
            (one_line(key, 60).replace("_", " "), f"{n:,}", percent(n / whole if whole else 0.0))
            for key, n in counts[:_MOST_ROWS]
        ),
        note=f"{rest_note}{note}".strip(),
    )
