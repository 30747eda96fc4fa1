"""Check that prepared data has what a loss needs, and choose the rules for rewards with ties.

Checked  tests/unit/align/test_loss_data.py
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stamm.align.data.encoded import CHOSEN, REJECTED, EncodedAnswer, EncodedExamples
from stamm.align.training.loss_config import KTO, QRPO, REBEL, SFT, BradleyTerry, Loss
from stamm.base.errors import DataError

_MANY_TIES = 0.1  # share of equal pairs of reference rewards from which on it matters


def check_data(loss: Loss, data: EncodedExamples) -> None:
    """Check that prepared examples have what a loss needs.

    The prepare step of a recipe has checked the rewards of the rows (`PrepareConfig.needs`).

    Raises   DataError naming the first example that does not
    """
    name = type(loss).__name__
    kinds: tuple[str, ...] = ("chat",) if isinstance(loss, SFT) else ("preference",)
    kinds = ("preference", "rated") if isinstance(loss, QRPO | KTO) else kinds
    if data.kind not in kinds:
        raise DataError(
            f"{name} is trained on {' or '.join(kinds)} rows, and the data has {data.kind} rows",
            fix="Choose another data file, or another recipe",
        )
    if isinstance(loss, BradleyTerry) and loss.margin:
        _check_margins(data)
    if isinstance(loss, KTO):
        if loss.threshold is not None and data.kind == "preference":
            raise DataError(
                f"train.loss.threshold = {loss.threshold} is not read of pairs, whose chosen answer is "
                "desirable",
                fix="Leave it out, or give rated answers",
            )
        desirable_answers(loss, data)
    if isinstance(loss, QRPO | REBEL):
        for answer in data.answers:
            if answer.reward is None or (isinstance(loss, QRPO) and not answer.ref_rewards):
                lacks = "no reward" if answer.reward is None else "no ref_rewards"
                raise _lacking(name, answer, lacks)


def with_tie_rules(loss: Loss, data: EncodedExamples) -> tuple[Loss, str]:
    """The loss with `ties` and `partition` of QRPO chosen where they are "auto", and a remark.

    With equal rewards quantiles are not uniform, and the closed form is wrong: measured in
    docs/log/2026-11-23-alignment-truth.md, question 7.
    """
    if not isinstance(loss, QRPO):
        return loss, ""
    share = tie_share(data)
    has_ties = share > _MANY_TIES
    ties, partition = loss.tie_rules(has_ties)
    remark = ""
    if has_ties:
        better = " train.loss.ties=mid train.loss.partition=empirical is exact for such rewards"
        advice = "" if partition == "empirical" else f";{better}"
        remark = (
            f"{share:.0%} of the pairs of reference rewards are equal, as with pass or fail: trained "
            f"with ties={ties}, partition={partition}{advice}."
        )
    return replace(loss, ties=ties, partition=partition), remark


def tie_share(data: EncodedExamples) -> float:
    """Share of the pairs of reference rewards of an answer that are equal; 0 without any pair."""
    pairs = ties = 0
    for answer in data.answers:
        for count in Counter(answer.ref_rewards).values():
            ties += count * (count - 1)
        pairs += len(answer.ref_rewards) * (len(answer.ref_rewards) - 1)
    return ties / pairs if pairs else 0.0


def desirable_answers(loss: KTO, data: EncodedExamples, *, check: bool = True) -> list[float]:
    """1 for each answer that is desirable, 0 for the others.

    Raises   DataError for an answer without a reward, for a reward that is neither 1 nor 0 without a
             threshold, and with `check` when all answers are the same
    """
    found = []
    for answer in data.answers:
        if answer.role in (CHOSEN, REJECTED):
            found.append(float(answer.role == CHOSEN))
            continue
        if answer.reward is None:
            raise _lacking("KTO", answer, "no reward")
        if loss.threshold is None and answer.reward not in (0.0, 1.0):
            raise DataError(
                f"the reward of example {answer.example} is {answer.reward}, and KTO reads 1 or 0",
                fix="Set train.loss.threshold=R: answers with at least this reward are desirable",
            )
        found.append(float(answer.reward >= (1.0 if loss.threshold is None else loss.threshold)))
    if len(set(found)) == 1 and check:
        which = "desirable" if found[0] else "undesirable"
        raise DataError(
            f"all {len(found)} answers are {which}: KTO needs both kinds",
            fix="Add rows, or set train.loss.threshold between the rewards",
        )
    return found


def balance_remark(loss: Loss, data: EncodedExamples) -> str:
    """A sentence where one kind of KTO's answers outweighs the other by more than 4 to 3, else "".

    Source   trl 1.16, KTOTrainer: weights times numbers should be in the ratio 1 to 4/3
    """
    if not isinstance(loss, KTO):
        return ""
    kinds = desirable_answers(loss, data)
    desirable = round(sum(kinds))
    other = len(kinds) - desirable
    ratio = loss.desirable_weight * desirable / (loss.undesirable_weight * other)
    if 3 / 4 <= ratio <= 4 / 3:
        return ""
    name, weight = (
        ("undesirable_weight", loss.undesirable_weight * ratio)
        if ratio > 1
        else ("desirable_weight", loss.desirable_weight / ratio)
    )
    return (
        f"{desirable:,} answers are desirable and {other:,} are not: with these weights the former count "
        f"{ratio:.3g} times as much. train.loss.{name}={weight:.3g} balances them."
    )


def _check_margins(data: EncodedExamples) -> None:
    """Check that some pair has a margin, and that none contradicts its order."""
    rewards: dict[int, dict[str, float | None]] = {}
    for answer in data.answers:
        rewards.setdefault(answer.example, {})[answer.role] = answer.reward
    found = 0
    for example, pair in rewards.items():
        chosen, rejected = pair.get(CHOSEN), pair.get(REJECTED)
        if chosen is None or rejected is None:
            continue
        found += 1
        if chosen < rejected:
            raise DataError(
                f"the chosen answer of example {example} has the reward {chosen}, and the rejected one"
                f" {rejected}: a margin cannot be negative",
                fix="Swap the two answers, leave the row out, or set train.loss.margin=false",
            )
    if not found:
        raise DataError(
            "margin is set, and no pair has rewards",
            fix="Give rows chosen_reward and rejected_reward, or set train.loss.margin=false",
        )


def _lacking(name: str, answer: EncodedAnswer, what: str) -> DataError:
    identifier = f" (id {answer.id[:80]!r})" if answer.id else ""
    return DataError(
        f"{name} needs rewards, and example {answer.example}{identifier} has {what}",
        fix="`stamm score` adds rewards; the columns are in docs/alignment.md",
    )
