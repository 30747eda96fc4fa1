"""The result of a run: a table with a row per arm, and sentences."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from stamm.reports.alignment_section import AlignmentSection, alignment_section
from stamm.reports.comparability import (
    blimp_part,
    unequal_audit,
    unequal_evaluation,
    unequal_pairs,
)
from stamm.reports.formatting import ABSENT, fixed, percent, signed
from stamm.reports.paired import REFERENCE, paired_difference
from stamm.reports.results import Measured
from stamm.reports.run_data import ArmResults, RunResults, collect
from stamm.reports.text import one_line


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One arm's line. None where a step was not run.

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
    loss_nats: float | None
    bits_per_byte: float | None
    difference: float | None
    half_width: float | None
    blimp: float | None
    blimp_error: float | None
    tokens_per_s: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a run.

    reference    name of the arm that differences are taken against, "" when there is none
    lowest       name of the arm with the lowest held-out loss, "" when none was evaluated; both
                 are "" when the arms were evaluated with different settings
    chance       accuracy of guessing on BLiMP, None when it was not run
    blimp        which part of BLiMP was asked, "" when it was not run
    sentences    findings, most important first
    alignment    of a run that fine-tunes or aligns a model, whose table it has instead of `rows`
    """

    recipe: str
    rows: tuple[ArmResult, ...]
    reference: str
    lowest: str
    chance: float | None
    sentences: tuple[str, ...]
    blimp: str = ""
    alignment: AlignmentSection | None = None

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
        if self.alignment is not None:
            return self.alignment.text()
        short = (
            "arm", "feed-forward", "parameters", "loss, nats", "bits/byte",
            *((f"vs {self.reference}",) if self.reference else ()), "BLiMP", "tokens/s",
        )  # fmt: skip
        rows = [short]
        for row in self.rows:
            # The half widths stay on the page: a terminal has no room for them.
            cells = self.cells(dataclasses.replace(row, half_width=None))
            rows.append(cells[:-1])
        widths = [max(len(row[i]) for row in rows) for i in range(len(short))]
        lines = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, "", *self.sentences])


def verdict(run_folder: Path) -> Verdict:
    """The result of the run in `run_folder`.

    Raises   as `collect`.
    """
    return judge(collect(run_folder))


def judge(study: RunResults) -> Verdict:
    """The result of a collected run."""
    aligned = alignment_section(study)
    if aligned is not None:
        return Verdict(
            recipe=study.recipe,
            rows=(),
            reference="",
            lowest="",
            chance=None,
            sentences=aligned.sentences,
            alignment=aligned,
        )
    held = {arm.name: arm.measured for arm in study.arms if arm.measured.held_out}
    unequal = unequal_evaluation(study.arms)
    compared = REFERENCE in held and len(study.arms) > 1 and not unequal
    reference = REFERENCE if compared else ""
    rows = tuple(_row(arm, held.get(reference)) for arm in study.arms)
    measured = {row.name: row for row in rows if row.loss_nats is not None}
    lowest = "" if unequal else min(measured, key=lambda name: _of(measured[name]), default="")
    chances = [arm.measured.blimp.chance for arm in study.arms if arm.measured.blimp]
    return Verdict(
        recipe=study.recipe,
        rows=rows,
        reference=reference,
        lowest=lowest,
        chance=chances[0] if chances else None,
        blimp=blimp_part(study.arms),
        sentences=tuple(_sentences(study, measured, lowest, unequal)),
    )


def _sentences(
    study: RunResults, measured: dict[str, ArmResult], lowest: str, unequal: str
) -> list[str]:
    if not study.arms:
        return ["No model was trained yet."]
    if not measured:
        return ["No arm has a held-out evaluation yet: nothing can be compared."]
    if len(study.arms) == 1:
        row = measured[lowest]
        return [
            f"{_name(lowest)} reaches {fixed(row.loss_nats, 4)} nats per token on held-out text "
            f"({fixed(row.bits_per_byte, 4)} bits per byte).",
            *_trained(study),
            "There is one arm, so there is nothing to compare it with.",
        ]
    if unequal:
        said = [unequal]
    elif len(measured) == 1:
        said = [f"Only {_name(lowest)} was evaluated: nothing can be compared."]
    else:
        said = [_margin(measured, lowest)]
        said.append(
            "One seed and no interval: the difference may be chance, so this run does not say "
            f"which {_compared(study)} is better."
        )
        said += _over_documents(study, measured)
    missing = [_name(arm.name) for arm in study.arms if arm.name not in measured]
    if missing and len(measured) > 1:
        said.append(f"Not evaluated: {', '.join(missing)}.")
    said += filter(None, (unequal_pairs(study.arms), unequal_audit(study.arms)))
    said.append(_fairness(study))
    return said


def _trained(study: RunResults) -> list[str]:
    """A sentence about the tokens of a run's only arm and those of its packed corpus."""
    trained, packed = study.arms[0].training.summary, study.pack and study.pack.splits.get("train")
    if not trained or not packed or not packed.tokens:
        return []
    passes = trained.trained_tokens / packed.tokens
    return [
        f"It was trained on {trained.trained_tokens:,} tokens, {passes:.2f} times the "
        f"{packed.tokens:,} of the training text."
    ]


def _margin(measured: dict[str, ArmResult], lowest: str) -> str:
    ordered = sorted(measured, key=lambda name: _of(measured[name]))
    first, second = measured[ordered[0]], measured[ordered[1]]
    if not math.isfinite(_of(first)):
        return "No arm has a finite held-out loss."
    nats = _of(second) - _of(first)
    if nats == 0:
        return f"{_name(first.name)} and {_name(second.name)} have the same held-out loss."
    bits = (second.bits_per_byte or 0.0) - (first.bits_per_byte or 0.0)
    return (
        f"{_name(lowest)} has the lowest held-out loss of {len(measured)} arms, "
        f"{fixed(first.loss_nats, 4)} nats per token: {fixed(nats, 4)} nats per token "
        f"({fixed(bits, 4)} bits per byte) below {_name(second.name)}, the next."
    )


def _compared(study: RunResults) -> str:
    activations = {arm.training.activation for arm in study.arms}
    return "arm" if len(activations) == 1 else "activation"


def _over_documents(study: RunResults, measured: dict[str, ArmResult]) -> list[str]:
    ordered = sorted(measured, key=lambda name: _of(measured[name]))[:2]
    first, second = (
        arm.measured.documents for name in ordered for arm in study.arms if arm.name == name
    )
    found = paired_difference(first, second)
    if found is None:
        return []
    low, high = found.mean - found.half_width, found.mean + found.half_width
    return [
        f"Over held-out documents, taken in pairs, the 95 % interval of that margin is "
        f"{signed(low, 4)} to {signed(high, 4)} nats per token; what another seed would give is "
        "not known."
    ]


def _fairness(study: RunResults) -> str:
    sizes = [arm.training.summary.parameters for arm in study.arms if arm.training.summary]
    if len(sizes) < len(study.arms):
        return "Not every arm has finished training."
    spread = max(sizes) - min(sizes)
    sized = "are equal" if spread == 0 else f"differ by at most {spread:,} of {max(sizes):,}"
    tokens = {arm.training.summary.trained_tokens for arm in study.arms if arm.training.summary}
    if study.same_tokens:
        seen = f"and the arms saw the same {max(tokens):,} tokens in the same order"
    elif len(tokens) == 1:
        seen = f"and each arm was trained on {max(tokens):,} tokens"
    else:
        seen = f"but the arms saw between {min(tokens):,} and {max(tokens):,} tokens"
    return f"Parameters {sized}, {seen}."


def _row(arm: ArmResults, base: Measured | None) -> ArmResult:
    training, measured = arm.training, arm.measured
    loss = measured.held_out.loss_nats if measured.held_out else None
    base_loss = base.held_out.loss_nats if base and base.held_out else None
    paired = (
        paired_difference(base.documents, measured.documents)
        if base and measured.held_out and base is not measured
        else None
    )
    return ArmResult(
        name=arm.name,
        number=arm.number,
        activation=training.activation,
        feed_forward=training.ffn_kind,
        width=training.ffn_width,
        parameters=training.summary.parameters if training.summary else None,
        loss_nats=loss,
        bits_per_byte=measured.held_out.bits_per_byte if measured.held_out else None,
        difference=loss - base_loss if loss is not None and base_loss is not None else None,
        half_width=paired.half_width if paired else None,
        blimp=measured.blimp.accuracy if measured.blimp else None,
        blimp_error=measured.blimp.scores()["overall"].standard_error if measured.blimp else None,
        tokens_per_s=training.timing.tokens_per_s_median if training.timing else None,
        seconds=training.timing.seconds if training.timing else None,
    )


def _of(row: ArmResult) -> float:
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
