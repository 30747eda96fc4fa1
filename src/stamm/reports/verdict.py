"""What a run found, in a small table and a few honest sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from stamm.reports.comparability import unequal_audit, unequal_evaluation, unequal_pairs
from stamm.reports.formatting import ABSENT, fixed, percent, signed
from stamm.reports.results import HeldOut
from stamm.reports.run_data import Arm, Study, collect
from stamm.reports.text import one_line

REFERENCE = "swiglu"


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One arm's line. None where a step was not run.

    difference   held-out loss minus that of the reference arm, in nats per token
    blimp_error  standard error of the accuracy over pairs
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
    sentences    what may be said, most important first
    """

    recipe: str
    rows: tuple[ArmResult, ...]
    reference: str
    lowest: str
    chance: float | None
    sentences: tuple[str, ...]

    def columns(self) -> tuple[str, ...]:
        """Headings of the table, in the order of `cells`."""
        against = (f"against {self.reference}, nats/token",) if self.reference else ()
        blimp = "BLiMP" if self.chance is None else f"BLiMP, chance {percent(self.chance, 0)}"
        return (
            "arm", "feed-forward, and its width", "parameters", "held-out loss, nats/token",
            "bits per byte", *against, blimp, "speed, tokens/s", "training, s",
        )  # fmt: skip

    def cells(self, row: ArmResult) -> tuple[str, ...]:
        """The texts of one line."""
        against = (signed(row.difference, 4),) if self.reference else ()
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
            cells = self.cells(row)
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
    """What the run in `run_folder` found.

    Raises   as `collect`.
    """
    return judge(collect(run_folder))


def judge(study: Study) -> Verdict:
    """What a collected run found."""
    losses = {arm.name: _loss(arm) for arm in study.arms}
    base = losses.get(REFERENCE)
    unequal = unequal_evaluation(study.arms)
    compared = base is not None and len(study.arms) > 1 and not unequal
    reference = REFERENCE if compared else ""
    rows = tuple(_row(arm, base if reference else None) for arm in study.arms)
    measured = {row.name: row for row in rows if row.loss_nats is not None}
    lowest = "" if unequal else min(measured, key=lambda name: _of(measured[name]), default="")
    chances = [arm.measured.blimp.chance for arm in study.arms if arm.measured.blimp]
    return Verdict(
        recipe=study.recipe,
        rows=rows,
        reference=reference,
        lowest=lowest,
        chance=chances[0] if chances else None,
        sentences=tuple(_sentences(study, measured, lowest, unequal)),
    )


def _sentences(
    study: Study, measured: dict[str, ArmResult], lowest: str, unequal: str
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
            "which activation is better."
        )
        said += _over_documents(study, measured)
    missing = [_name(arm.name) for arm in study.arms if arm.name not in measured]
    if missing and len(measured) > 1:
        said.append(f"Not evaluated: {', '.join(missing)}.")
    said += filter(None, (unequal_pairs(study.arms), unequal_audit(study.arms)))
    said.append(_fairness(study))
    return said


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


def paired_error(first: HeldOut, second: HeldOut) -> float | None:
    """Standard error of the difference in loss between two arms, over documents, nats per token.

    With d the difference in nats and t the tokens of a document, and D = sum(d) / sum(t):
    sqrt(n / (n - 1) * sum_i (d_i - D t_i)^2) / sum(t)

    Edge     None without records of the same documents, cut into the same tokens, at least two.
    Source   Cochran 1977, Sampling Techniques, section 6.4 (ratio estimate)
    """
    names = sorted(first.documents)
    if len(names) < 2 or names != sorted(second.documents):
        return None
    pairs = [(first.documents[name], second.documents[name]) for name in names]
    if any(one[0] != other[0] for one, other in pairs):
        return None
    total = sum(one[0] for one, _ in pairs)
    apart = [other[1] - one[1] for one, other in pairs]
    mean = math.fsum(apart) / total
    squares = math.fsum(
        (nats - mean * one[0]) ** 2 for nats, (one, _) in zip(apart, pairs, strict=True)
    )
    return math.sqrt(len(names) / (len(names) - 1) * squares) / total


def _over_documents(study: Study, measured: dict[str, ArmResult]) -> list[str]:
    ordered = sorted(measured, key=lambda name: _of(measured[name]))[:2]
    first, second = (
        arm.measured.held_out for name in ordered for arm in study.arms if arm.name == name
    )
    error = paired_error(first, second) if first and second else None
    if error is None or not math.isfinite(error):
        return []
    return [
        f"The choice of held-out documents alone leaves a standard error of {fixed(error, 4)} nats "
        "per token on that margin (documents taken in pairs); what another seed would give is not "
        "known."
    ]


def _fairness(study: Study) -> str:
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


def _row(arm: Arm, base: float | None) -> ArmResult:
    training, measured = arm.training, arm.measured
    loss = _loss(arm)
    return ArmResult(
        name=arm.name,
        number=arm.number,
        activation=training.activation,
        feed_forward=training.ffn_kind,
        width=training.ffn_width,
        parameters=training.summary.parameters if training.summary else None,
        loss_nats=loss,
        bits_per_byte=measured.held_out.bits_per_byte if measured.held_out else None,
        difference=loss - base if loss is not None and base is not None else None,
        blimp=measured.blimp.accuracy if measured.blimp else None,
        blimp_error=measured.blimp.standard_error if measured.blimp else None,
        tokens_per_s=training.timing.tokens_per_s_median if training.timing else None,
        seconds=training.timing.seconds if training.timing else None,
    )


def _loss(arm: Arm) -> float | None:
    return arm.measured.held_out.loss_nats if arm.measured.held_out else None


def _of(row: ArmResult) -> float:
    loss = row.loss_nats
    return math.inf if loss is None or math.isnan(loss) else loss


def _feed_forward(row: ArmResult) -> str:
    if row.feed_forward is None:
        return ABSENT
    kind = {"PlainFFN": "plain", "GatedFFN": "gated"}.get(row.feed_forward, row.feed_forward)
    return one_line(f"{kind} {row.activation} {row.width}", 60)


def _name(name: str) -> str:
    return one_line(name, 60)
