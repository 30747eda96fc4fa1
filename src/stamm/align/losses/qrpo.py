"""Quantile Reward Policy Optimization: regression of each answer on the quantile of its reward."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from stamm import losses
from stamm.align.losses.preference_loss import (
    ExampleLosses,
    LossInputs,
    Needs,
    PreferenceLoss,
    lacking,
)
from stamm.base.bounds import Positive
from stamm.base.config import Bounded
from stamm.losses.preference_types import (
    LengthNormalization,
    Partition,
    Ties,
    Transform,
    closed_form_beta,
)

if TYPE_CHECKING:
    from torch import Tensor

    from stamm.align.data.encoded import EncodedExamples

_MANY_TIES = 0.1  # share of equal pairs of reference rewards from which on it matters


@dataclass(frozen=True, kw_only=True)
class QRPO(Bounded, PreferenceLoss):
    """Quantile Reward Policy Optimization: pointwise regression on the quantile of the reward.

    loss = (f(q) - beta log Z - beta log-ratio)^2, the mean over answers

    beta            strength of the KL regularisation. With normalize="beta" it is divided by the
                    answer's tokens (Apertus: 5.0)
    transform       f, of the quantile q among the reference rewards
    partition       log Z: "auto" is "empirical" for rewards with ties, else "exact"; "empirical", from the references themselves (exact for rewards
                    with ties); "grid", for quantiles on the grid 0, 1/n .. 1; "released", the
                    approximation of the released trainers, refused where its error exceeds 1e-3;
                    "released_anyway", without that check
    ties            "auto" is "mid" for rewards with ties, else "le"; "le" counts references that are
                    at most the reward, as published; "mid" counts equal ones half. Rewards have ties
                    when more than 10 % of the pairs of reference rewards of the data are equal
    leave_one_out   the answer is itself one of the references, and is left out of them
    normalize       "none"; "beta": beta / tokens; "loss": loss / tokens
    largest_beta    clamp of beta, with normalize="beta" of beta / tokens (Apertus: 0.1); None: none
    """

    ROWS: ClassVar[tuple[Literal["preference", "rated"], ...]] = ("preference", "rated")

    beta: Positive = 0.1
    transform: Transform = "identity"
    partition: Literal["auto", "exact", "empirical", "grid", "released", "released_anyway"] = "auto"
    ties: Literal["auto", "le", "mid"] = "auto"
    leave_one_out: bool = False
    normalize: LengthNormalization = "none"
    largest_beta: Positive | None = None

    def tie_rules(self, has_ties: bool = False) -> tuple[Ties, Partition]:
        """`ties` and `partition`, where they are "auto" those for rewards with ties, or without."""
        ties: Ties = ("mid" if has_ties else "le") if self.ties == "auto" else self.ties
        if self.partition != "auto":
            return ties, self.partition
        return ties, "empirical" if has_ties else "exact"

    @property
    def closed_form_beta(self) -> float | None:
        """See `stamm.losses.preference_types.closed_form_beta`."""
        return closed_form_beta(self.beta, self.transform, self.normalize, self.largest_beta)

    @property
    def needs(self) -> Needs:
        """Reference rewards, among them its own with `leave_one_out`."""
        return "own_ref_rewards" if self.leave_one_out else "ref_rewards"

    @property
    def min_references(self) -> int:
        """Three for the probit transform, beside its own with `leave_one_out`."""
        return (3 if self.transform == "probit" else 1) + self.leave_one_out

    def check(self, data: EncodedExamples) -> None:
        """Check that every answer has a reward and references."""
        for answer in data.answers:
            if answer.reward is None or not answer.ref_rewards:
                missing = "no reward" if answer.reward is None else "no ref_rewards"
                raise lacking("QRPO", answer, missing)

    def fitted(self, data: EncodedExamples) -> tuple[Self, tuple[str, ...]]:
        """`ties` and `partition` chosen where they are "auto", and a remark on rewards with ties.

        With equal rewards quantiles are not uniform, and the closed form is wrong: measured in
        docs/log/2026-11-23-alignment-truth.md, question 7.
        """
        share = tie_share(data)
        has_ties = share > _MANY_TIES
        ties, partition = self.tie_rules(has_ties)
        remarks: tuple[str, ...] = ()
        if has_ties:
            better = " train.loss.ties=mid train.loss.partition=empirical is exact for such rewards"
            advice = "" if partition == "empirical" else f";{better}"
            remarks = (
                f"{share:.0%} of the pairs of reference rewards are equal, as with pass or fail: trained "
                f"with ties={ties}, partition={partition}{advice}.",
            )
        return replace(self, ties=ties, partition=partition), remarks

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each example; an example of two answers has the mean of their losses."""
        ties, partition = self.tie_rules()
        quantile_B = losses.quantile_rewards(
            answers.reward_B,
            answers.ref_reward_BN,
            ties=ties,
            leave_one_out=self.leave_one_out,
        )
        compared_B = (~answers.ref_reward_BN.isnan()).sum(dim=1) - int(self.leave_one_out)
        result = losses.qrpo_loss(
            answers.log_ratio(),
            quantile_B,
            beta=self.beta,
            references=compared_B,
            transform=self.transform,
            partition=partition,
            reference_quantile_BN=self._reference_quantiles(answers.ref_reward_BN),
            length_B=answers.length_B,
            normalize=self.normalize,
            largest_beta=self.largest_beta,
        )
        count = max(len(answers.length_B) // max(answers.num_examples, 1), 1)

        def by_example(value_B: Tensor) -> Tensor:
            return value_B.reshape(-1, count).mean(dim=1)

        metrics = {
            "reward/log_ratio": answers.log_ratio().detach(),
            "reward/quantile": quantile_B,
            "reward/target": (result.target_B / result.beta_B).detach(),
        }
        means = {name: by_example(value) for name, value in metrics.items()}
        return ExampleLosses(by_example(result.loss_B), means)

    def _reference_quantiles(self, ref_reward_BN: Tensor) -> Tensor | None:
        """Quantiles of the references among themselves, NaN where missing; None: not needed.

        With leave_one_out each is left out of its own comparison, as the answer is.
        """
        ties, partition = self.tie_rules()
        if partition != "empirical":
            return None
        known_BN = ~ref_reward_BN.isnan()
        below_BN = (ref_reward_BN[:, None, :] < ref_reward_BN[:, :, None]).sum(-1).double()
        equal_BN = (ref_reward_BN[:, None, :] == ref_reward_BN[:, :, None]).sum(-1).double()
        num_own = int(self.leave_one_out)
        weight = 1.0 if ties == "le" else 0.5
        compared_B1 = known_BN.sum(dim=1, keepdim=True) - num_own
        quantile_BN = (below_BN + (equal_BN - num_own) * weight) / compared_B1
        return quantile_BN.masked_fill(~known_BN, math.nan)


def tie_share(data: EncodedExamples) -> float:
    """Share of the pairs of reference rewards of an answer that are equal; 0 without any pair."""
    pairs = ties = 0
    for answer in data.answers:
        for count in Counter(answer.ref_rewards).values():
            ties += count * (count - 1)
        pairs += len(answer.ref_rewards) * (len(answer.ref_rewards) - 1)
    return ties / pairs if pairs else 0.0
