"""Section "Verdict": the arms of a run with a row each, and sentences about the lowest held-out loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.audit.results import read_memorization, unequal_audit
from stamm.base.schema import read_record_if_present
from stamm.corpus.records import PackManifest
from stamm.evaluate.results import Evaluated, EvaluatedArms, read_evaluated_arms
from stamm.evaluate.section import blimp_part, unequal_evaluation, unequal_pairs
from stamm.pages.config import ReportConfig
from stamm.pages.formatting import ABSENT, fixed, percent, signed, table_lines
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pages.text import one_line
from stamm.pretrain.results import ArmTraining, read_training, same_tokens
from stamm.runs.run_view import IMPORTED, STUDY, ArmView, RunView, open_view
from stamm.statistics.paired import REFERENCE, paired_difference


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The verdict on the arms of a run that trains or imports models.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    if run.kind not in (STUDY, IMPORTED):
        return ()
    html = fill(
        "verdict.html",
        {"verdict": _verdict(run)},
        "stamm.compare",
        excerpt_characters=config.excerpt_characters,
    )
    return (Section(key="verdict", title="Verdict", html=html),)


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One arm's line. None where a step was not run.

    tokens       trained on
    difference   held-out loss minus that of the reference arm, in nats per token
    half_width   of its 95 % interval over held-out documents, taken in pairs
    blimp_error  standard error of the accuracy, over paradigms
    """

    name: str
    number: int
    activation: str | None
    feed_forward: str | None
    width: int | None
    parameters: int | None
    tokens: int | None
    loss_nats: float | None
    bits_per_byte: float | None
    difference: float | None
    half_width: float | None
    blimp: float | None
    blimp_error: float | None
    tokens_per_s: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class StudyVerdict:
    """The verdict on the arms of a run.

    reference    name of the arm that differences are taken against, "" when there is none
    lowest       name of the arm with the lowest held-out loss, "" when none was evaluated; both
                 are "" when the arms were evaluated with different settings
    chance       accuracy of guessing on BLiMP, None when it was not run
    blimp        which part of BLiMP was asked, "" when it was not run
    sentences    findings, most important first
    """

    rows: tuple[ArmResult, ...]
    reference: str
    lowest: str
    chance: float | None
    sentences: tuple[str, ...]
    blimp: str = ""

    def columns(self) -> tuple[str, ...]:
        """Headings of the table, in the order of `cells`."""
        against = (f"against {self.reference}, nats/token, ± 95 %",) if self.reference else ()
        blimp = f"{self.blimp or 'BLiMP'}, ± standard error"
        blimp += "" if self.chance is None else f", chance {percent(self.chance, 0)}"
        return (
            "arm", "feed-forward, and its width", "parameters", "held-out loss, nats/token",
            "bits per byte", *against, blimp, "speed, tokens/s", "training, s",
        )  # fmt: skip

    def cells(self, row: ArmResult) -> tuple[str, ...]:
        """The texts of one line."""
        against = (_difference(row),) if self.reference else ()
        blimp = percent(row.blimp)
        if row.blimp is not None and row.blimp_error is not None:
            blimp = f"{fixed(100 * row.blimp, 1)} ± {percent(row.blimp_error)}"
        return (
            one_line(row.name, 60),
            _feed_forward(row),
            fixed(row.parameters, 0),
            fixed(row.loss_nats, 4),
            fixed(row.bits_per_byte, 4),
            *against,
            blimp,
            fixed(row.tokens_per_s, 0),
            fixed(row.seconds, 1),
        )

    def text(self) -> str:
        """The table and the sentences as plain lines for a terminal, at most 120 wide."""
        short = (
            "arm", "feed-forward", "parameters", "loss, nats", "bits/byte",
            *((f"vs {self.reference}",) if self.reference else ()), "BLiMP", "tokens/s",
        )  # fmt: skip
        rows = [short]
        for row in self.rows:
            # The half widths stay on the page: a terminal has no room for them.
            cells = self.cells(dataclasses.replace(row, half_width=None))
            rows.append(cells[:-1])
        return "\n".join([*table_lines(rows, words=2), "", *self.sentences])

    def table(self) -> list[tuple[int, tuple[str, ...], str]]:
        """Number, texts and mark of each line."""
        several = len(self.rows) > 1
        return [
            (row.number, self.cells(row), "lowest loss" * (several and row.name == self.lowest))
            for row in self.rows
        ]


def study_verdict(run_folder: Path) -> StudyVerdict:
    """The verdict on the arms of the run in `run_folder`.

    Raises   as `open_view` and `sections`
    """
    return _verdict(open_view(run_folder))


def _verdict(run: RunView) -> StudyVerdict:
    arms = read_evaluated_arms(run)
    trained = [(arm, read_training(arm.folder)) for arm in run.arms]
    held = {arm.name: evaluated for arm, evaluated in arms if evaluated.held_out}
    unequal = unequal_evaluation(arms)
    compared = REFERENCE in held and len(arms) > 1 and not unequal
    reference = REFERENCE if compared else ""
    rows = tuple(
        _row(arm, training, evaluated, held.get(reference))
        for (arm, training), (_, evaluated) in zip(trained, arms, strict=True)
    )
    measured = {row.name: row for row in rows if row.loss_nats is not None}
    lowest = "" if unequal else min(measured, key=lambda name: _loss(measured[name]), default="")
    chances = [evaluated.blimp.chance for _, evaluated in arms if evaluated.blimp]
    if not rows:
        said = ["No model was trained yet."]
    elif not measured:
        said = ["No arm has a held-out evaluation yet: nothing can be compared."]
    elif len(rows) == 1:
        said = _alone(run, rows[0])
    else:
        said = [*_compared(arms, rows, measured, unequal), _fairness(trained)]
    return StudyVerdict(
        rows=rows,
        reference=reference,
        lowest=lowest,
        chance=chances[0] if chances else None,
        blimp=blimp_part(arms),
        sentences=tuple(said),
    )


def _alone(run: RunView, row: ArmResult) -> list[str]:
    """About the only arm: its loss, and the tokens that it was trained on against its packed corpus."""
    said = [
        f"{_name(row.name)} reaches {fixed(row.loss_nats, 4)} nats per token on held-out text "
        f"({fixed(row.bits_per_byte, 4)} bits per byte)."
    ]
    pack = read_record_if_present(PackManifest, run.root / "pack" / "manifest.json")
    packed = pack.splits.get("train") if pack else None
    if row.tokens is not None and packed and packed.tokens:
        said.append(
            f"It was trained on {row.tokens:,} tokens, {row.tokens / packed.tokens:.2f} times the "
            f"{packed.tokens:,} of the training text."
        )
    return [*said, "There is one arm, so there is nothing to compare it with."]


def _compared(
    arms: EvaluatedArms,
    rows: Sequence[ArmResult],
    measured: Mapping[str, ArmResult],
    unequal: str,
) -> list[str]:
    ordered = sorted(measured.values(), key=_loss)
    if unequal:
        said = [unequal]
    elif len(ordered) == 1:
        said = [f"Only {_name(ordered[0].name)} was evaluated: nothing can be compared."]
    else:
        kind = "arm" if len({row.activation for row in rows}) == 1 else "activation"
        said = [
            _margin(ordered),
            "One seed and no interval: the difference may be chance, so this run does not say "
            f"which {kind} is better.",
            *_over_documents(arms, ordered),
        ]
    missing = [_name(row.name) for row in rows if row.name not in measured]
    if missing and len(measured) > 1:
        said.append(f"Not evaluated: {', '.join(missing)}.")
    audits = [(arm.name, audit) for arm, _ in arms if (audit := read_memorization(arm))]
    return [*said, *filter(None, (unequal_pairs(arms), unequal_audit(audits)))]


def _margin(ordered: Sequence[ArmResult]) -> str:
    first, second = ordered[:2]
    if not math.isfinite(_loss(first)):
        return "No arm has a finite held-out loss."
    nats = _loss(second) - _loss(first)
    if nats == 0:
        return f"{_name(first.name)} and {_name(second.name)} have the same held-out loss."
    bits = (second.bits_per_byte or 0.0) - (first.bits_per_byte or 0.0)
    return (
        f"{_name(first.name)} has the lowest held-out loss of {len(ordered)} arms, "
        f"{fixed(first.loss_nats, 4)} nats per token: {fixed(nats, 4)} nats per token "
        f"({fixed(bits, 4)} bits per byte) below {_name(second.name)}, the next."
    )


def _over_documents(arms: EvaluatedArms, ordered: Sequence[ArmResult]) -> list[str]:
    documents = {arm.name: evaluated.documents for arm, evaluated in arms}
    difference = paired_difference(*(documents[row.name] for row in ordered[:2]))
    if difference is None:
        return []
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    return [
        f"Over held-out documents, taken in pairs, the 95 % interval of that margin is "
        f"{signed(low, 4)} to {signed(high, 4)} nats per token; what another seed would give is "
        "not known."
    ]


def _fairness(trained: Sequence[tuple[ArmView, ArmTraining]]) -> str:
    summaries = [training.summary for _, training in trained if training.summary]
    if len(summaries) < len(trained):
        return "Not every arm has finished training."
    sizes = [summary.parameters for summary in summaries]
    spread = max(sizes) - min(sizes)
    sized = "are equal" if spread == 0 else f"differ by at most {spread:,} of {max(sizes):,}"
    tokens = {summary.trained_tokens for summary in summaries}
    if same_tokens(trained):
        seen = f"and the arms saw the same {max(tokens):,} tokens in the same order"
    elif len(tokens) == 1:
        seen = f"and each arm was trained on {max(tokens):,} tokens"
    else:
        seen = f"but the arms saw between {min(tokens):,} and {max(tokens):,} tokens"
    return f"Parameters {sized}, {seen}."


def _row(
    arm: ArmView, training: ArmTraining, evaluated: Evaluated, base: Evaluated | None
) -> ArmResult:
    held_out, blimp = evaluated.held_out, evaluated.blimp
    loss = held_out.loss_nats if held_out else None
    base_loss = base.held_out.loss_nats if base and base.held_out else None
    paired = (
        paired_difference(base.documents, evaluated.documents)
        if base and held_out and base is not evaluated
        else None
    )
    return ArmResult(
        name=arm.name,
        number=arm.number,
        activation=training.activation,
        feed_forward=training.ffn_kind,
        width=training.ffn_width,
        parameters=training.summary.parameters if training.summary else None,
        tokens=training.summary.trained_tokens if training.summary else None,
        loss_nats=loss,
        bits_per_byte=held_out.bits_per_byte if held_out else None,
        difference=loss - base_loss if loss is not None and base_loss is not None else None,
        half_width=paired.half_width if paired else None,
        blimp=blimp.accuracy if blimp else None,
        blimp_error=blimp.scores()["overall"].standard_error if blimp else None,
        tokens_per_s=training.timing.tokens_per_s_median if training.timing else None,
        seconds=training.timing.seconds if training.timing else None,
    )


def _loss(row: ArmResult) -> float:
    loss = row.loss_nats
    return math.inf if loss is None or math.isnan(loss) else loss


def _difference(row: ArmResult) -> str:
    if row.half_width is None:
        return signed(row.difference, 4)
    return f"{signed(row.difference, 4)} ± {fixed(row.half_width, 4)}"


def _feed_forward(row: ArmResult) -> str:
    if row.feed_forward is None:
        return ABSENT
    kind = {"PlainFFN": "plain", "GatedFFN": "gated"}.get(row.feed_forward, row.feed_forward)
    return one_line(f"{kind} {row.activation} {row.width}", 60)


def _name(name: str) -> str:
    return one_line(name, 60)
