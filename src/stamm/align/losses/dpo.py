"""Direct Preference Optimization and its forms, SimPO and REBEL: losses on pairs of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stamm import losses
from stamm.align.losses.preference_loss import (
    ExampleLosses,
    LossInputs,
    Needs,
    PreferenceLoss,
    lacking,
    pair_metrics,
)
from stamm.base.bounds import NotNegative, Positive, within
from stamm.base.config import Bounded, validate

if TYPE_CHECKING:
    from stamm.align.data.encoded import EncodedExamples


@dataclass(frozen=True, kw_only=True)
class DPO(PreferenceLoss):
    """Direct Preference Optimization on pairs of answers.

    beta              strength of the KL regularisation
    form              "sigmoid"; "ipo"; "normalized": log-ratios per token (Tulu 3)
    label_smoothing   assumed share of pairs with the wrong order (conservative DPO)
    """

    beta: Positive = 0.1
    form: Literal["sigmoid", "ipo", "normalized"] = "sigmoid"
    label_smoothing: Annotated[float, within("[0, 0.5)")] = 0.0

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "label_smoothing",
                self.form != "ipo" or self.label_smoothing == 0,
                "is not defined for form=ipo",
            ),
        )

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each pair."""
        score_B, length_B = answers.log_ratio(), answers.length_B.double()
        chosen, rejected, lengths = score_B[0::2], score_B[1::2], (length_B[0::2], length_B[1::2])
        if self.form == "ipo":
            loss_P = losses.ipo_loss(chosen, rejected, *lengths, beta=self.beta)
        else:
            normalized = self.form == "normalized"
            loss_P = losses.dpo_loss(
                chosen,
                rejected,
                beta=self.beta,
                label_smoothing=self.label_smoothing,
                chosen_length_B=lengths[0] if normalized else None,
                rejected_length_B=lengths[1] if normalized else None,
            )
        return ExampleLosses(loss_P, pair_metrics(score_B))


@dataclass(frozen=True, kw_only=True)
class SimPO(Bounded, PreferenceLoss):
    """SimPO on pairs of answers: log-probabilities per token, without a reference policy.

    gamma   target margin, in units of beta times nats per token
    """

    NEEDS_REFERENCE: ClassVar[bool] = False

    beta: Positive = 2.0
    gamma: NotNegative = 1.0

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each pair."""
        log_prob_B, length_B = answers.log_prob_B, answers.length_B.double()
        loss_P = losses.simpo_loss(
            log_prob_B[0::2],
            log_prob_B[1::2],
            length_B[0::2],
            length_B[1::2],
            beta=self.beta,
            gamma=self.gamma,
        )
        return ExampleLosses(loss_P, pair_metrics(log_prob_B / length_B))


@dataclass(frozen=True, kw_only=True)
class REBEL(Bounded, PreferenceLoss):
    """REBEL on pairs of answers with rewards: regression of log-ratio differences on reward differences.

    beta   strength of the KL regularisation: the target is the reward difference / beta
    """

    beta: Positive = 0.1

    @property
    def needs(self) -> Needs:
        """Rewards of both answers."""
        return "rewards"

    def check(self, data: EncodedExamples) -> None:
        """Check that every answer has a reward."""
        for answer in data.answers:
            if answer.reward is None:
                raise lacking("REBEL", answer, "no reward")

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each pair."""
        score_B, reward_B = answers.log_ratio(), answers.reward_B
        loss_P = losses.rebel_loss(
            score_B[0::2], score_B[1::2], reward_B[0::2], reward_B[1::2], beta=self.beta
        )
        return ExampleLosses(loss_P, pair_metrics(score_B))
