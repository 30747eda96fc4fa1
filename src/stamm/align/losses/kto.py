"""Kahneman-Tversky Optimization: a loss on single answers that are desirable or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from stamm import losses
from stamm.align.losses.preference_loss import (
    ROUNDING,
    ExampleLosses,
    LossInputs,
    Needs,
    PreferenceLoss,
    lacking,
)
from stamm.base.bounds import Finite, Positive
from stamm.base.config import Bounded
from stamm.base.errors import DataError

if TYPE_CHECKING:
    from stamm.align.data.encoded import EncodedExamples


@dataclass(frozen=True, kw_only=True)
class KTO(Bounded, PreferenceLoss):
    """Kahneman-Tversky Optimization on single answers that are desirable or not.

    loss = w (1 - sigmoid(beta (log-ratio - KL))) of desirable answers, w (1 - sigmoid(beta (KL -
    log-ratio))) of undesirable ones. KL is estimated once for each step, from mismatched answers
    (`align.training.answer_dataset`).

    beta                                   strength of the KL regularisation
    desirable_weight, undesirable_weight   w
    threshold   rated answers with at least this reward are desirable; None: rewards are 1 or 0. Of a
                pair the chosen answer is desirable

    Source   Ethayarajh et al., arXiv 2402.01306, equations 7 to 9
    """

    ROWS: ClassVar[tuple[Literal["preference", "rated"], ...]] = ("preference", "rated")
    SINGLE_ANSWERS: ClassVar[bool] = True
    NEEDS_MISMATCHED: ClassVar[bool] = True

    beta: Positive = 0.1
    desirable_weight: Positive = 1.0
    undesirable_weight: Positive = 1.0
    threshold: Finite | None = None

    @property
    def needs(self) -> Needs:
        """Labels: a pair, or a reward of 1 or 0."""
        return "labels"

    def check(self, data: EncodedExamples) -> None:
        """Check that there are answers of both kinds, and a threshold for rated ones alone."""
        if self.threshold is not None and data.kind == "preference":
            raise DataError(
                f"train.loss.threshold = {self.threshold} is not read of pairs, whose chosen answer is "
                "desirable",
                fix="Leave it out, or give rated answers",
            )
        self.labels(data)

    def fitted(self, data: EncodedExamples) -> tuple[Self, tuple[str, ...]]:
        """A remark where one kind of answers outweighs the other by more than 4 to 3.

        Source   trl 1.16, KTOTrainer: weights times numbers should be in the ratio 1 to 4/3
        """
        kinds = self.labels(data)
        desirable = round(sum(kinds))
        other = len(kinds) - desirable
        ratio = self.desirable_weight * desirable / (self.undesirable_weight * other)
        if 3 / 4 <= ratio <= 4 / 3:
            return self, ()
        name, weight = (
            ("undesirable_weight", self.undesirable_weight * ratio)
            if ratio > 1
            else ("desirable_weight", self.desirable_weight / ratio)
        )
        remark = (
            f"{desirable:,} answers are desirable and {other:,} are not: with these weights the former "
            f"count {ratio:.3g} times as much. train.loss.{name}={weight:.3g} balances them."
        )
        return self, (remark,)

    def labels(self, data: EncodedExamples, *, check: bool = True) -> list[float]:
        """1 for each answer that is desirable, 0 for the others.

        Raises   DataError for an answer without a reward, for a reward that is neither 1 nor 0 without a
                 threshold, and with `check` when all answers are the same
        """
        kinds = []
        for answer in data.answers:
            if answer.role in ("chosen", "rejected"):
                kinds.append(float(answer.role == "chosen"))
                continue
            if answer.reward is None:
                raise lacking("KTO", answer, "no reward")
            if self.threshold is None and answer.reward not in (0.0, 1.0):
                raise DataError(
                    f"the reward of example {answer.example} is {answer.reward}, and KTO reads 1 or 0",
                    fix="Set train.loss.threshold=R: answers with at least this reward are desirable",
                )
            least = 1.0 if self.threshold is None else self.threshold
            kinds.append(float(answer.reward >= least))
        if len(set(kinds)) == 1 and check:
            label_name = "desirable" if kinds[0] else "undesirable"
            raise DataError(
                f"all {len(kinds)} answers are {label_name}: KTO needs both kinds",
                fix="Add rows, or set train.loss.threshold between the rewards",
            )
        return kinds

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each answer."""
        log_ratio_B = answers.log_ratio()
        desirable_B = answers.reward_B > 0.5
        kl_B = log_ratio_B.detach().new_full(log_ratio_B.shape, answers.kl)
        loss_B = losses.kto_loss(
            log_ratio_B,
            desirable_B,
            answers.kl,
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
        )
        log_ratio_B = log_ratio_B.detach()
        margin_B = (log_ratio_B - kl_B).where(desirable_B, kl_B - log_ratio_B)
        accuracy_B = losses.bradley_terry_accuracy(margin_B, margin_B.new_zeros(margin_B.shape))
        return ExampleLosses(
            loss_B,
            {
                "reward/log_ratio": log_ratio_B,
                "reward/kl": kl_B,
                "reward/accuracy": accuracy_B.masked_fill(margin_B.abs() <= ROUNDING, 0.5),
            },
        )
