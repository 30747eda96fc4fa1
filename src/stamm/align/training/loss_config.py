"""Configuration of what a model is fine-tuned on. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate
from stamm.losses.preference_types import (
    AdvantageScale,
    FeatureDistance,
    LengthNormalization,
    Partition,
    Ties,
    TokenAverage,
    Transform,
    closed_form_beta,
)
from stamm.pretrain.config import NEXT_TOKEN, objective_check

_POSITIVE = "must be positive and finite"


@dataclass(frozen=True, kw_only=True)
class SFT:
    """Supervised fine-tuning: next-token prediction of what the assistant writes.

    Prompts, tool outputs and padding have no loss. The mean is over the supervised tokens of the
    whole step.

    z_loss      weight of the mean of log(Z)^2, a separate metric beside the loss
    objective   "next-token", or a subclass of it, "mine.py:MyObjective" (docs/extending/objective.md)
    """

    z_loss: float = 0.0
    objective: str = NEXT_TOKEN

    def __post_init__(self) -> None:
        validate(
            self,
            ("z_loss", 0 <= self.z_loss < math.inf, "must be finite and not negative"),
            ("objective", *objective_check(self.objective)),
        )


@dataclass(frozen=True, kw_only=True)
class QRPO:
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

    beta: float = 0.1
    transform: Transform = "identity"
    partition: Literal["auto", "exact", "empirical", "grid", "released", "released_anyway"] = "auto"
    ties: Literal["auto", "le", "mid"] = "auto"
    leave_one_out: bool = False
    normalize: LengthNormalization = "none"
    largest_beta: float | None = None

    def __post_init__(self) -> None:
        largest = self.largest_beta
        validate(
            self,
            ("beta", 0 < self.beta < math.inf, _POSITIVE),
            ("largest_beta", largest is None or 0 < largest < math.inf, _POSITIVE),
        )

    @property
    def closed_form_beta(self) -> float | None:
        """See `stamm.losses.preference_types.closed_form_beta`."""
        return closed_form_beta(self.beta, self.transform, self.normalize, self.largest_beta)

    def tie_rules(self, has_ties: bool = False) -> tuple[Ties, Partition]:
        """`ties` and `partition`, where they are "auto" those for rewards with ties, or without."""
        ties: Ties = ("mid" if has_ties else "le") if self.ties == "auto" else self.ties
        if self.partition != "auto":
            return ties, self.partition
        return ties, "empirical" if has_ties else "exact"


@dataclass(frozen=True, kw_only=True)
class DPO:
    """Direct Preference Optimization on pairs of answers.

    beta              strength of the KL regularisation
    form              "sigmoid"; "ipo"; "normalized": log-ratios per token (Tulu 3)
    label_smoothing   assumed share of pairs with the wrong order (conservative DPO)
    """

    beta: float = 0.1
    form: Literal["sigmoid", "ipo", "normalized"] = "sigmoid"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        smooth = self.label_smoothing
        validate(
            self,
            ("beta", 0 < self.beta < math.inf, _POSITIVE),
            ("label_smoothing", 0 <= smooth < 0.5, "must be at least 0 and below 0.5"),
            ("label_smoothing", self.form != "ipo" or smooth == 0, "is not defined for form=ipo"),
        )


@dataclass(frozen=True, kw_only=True)
class SimPO:
    """SimPO on pairs of answers: log-probabilities per token, without a reference policy.

    gamma   target margin, in units of beta times nats per token
    """

    beta: float = 2.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        validate(
            self,
            ("beta", 0 < self.beta < math.inf, _POSITIVE),
            ("gamma", 0 <= self.gamma < math.inf, "must be finite and not negative"),
        )


@dataclass(frozen=True, kw_only=True)
class REBEL:
    """REBEL on pairs of answers with rewards: regression of log-ratio differences on reward differences.

    beta   strength of the KL regularisation: the target is the reward difference / beta
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        validate(self, ("beta", 0 < self.beta < math.inf, _POSITIVE))


@dataclass(frozen=True, kw_only=True)
class KTO:
    """Kahneman-Tversky Optimization on single answers that are desirable or not.

    loss = w (1 - sigmoid(beta (log-ratio - KL))) of desirable answers, w (1 - sigmoid(beta (KL -
    log-ratio))) of undesirable ones. KL is estimated once for each step, from mismatched answers
    (`align.training.mismatched_answers`).

    beta                                   strength of the KL regularisation
    desirable_weight, undesirable_weight   w
    threshold   rated answers with at least this reward are desirable; None: rewards are 1 or 0. Of a
                pair the chosen answer is desirable

    Source   Ethayarajh et al., arXiv 2402.01306, equations 7 to 9
    """

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    threshold: float | None = None

    def __post_init__(self) -> None:
        validate(
            self,
            ("beta", 0 < self.beta < math.inf, _POSITIVE),
            ("desirable_weight", 0 < self.desirable_weight < math.inf, _POSITIVE),
            ("undesirable_weight", 0 < self.undesirable_weight < math.inf, _POSITIVE),
        )


@dataclass(frozen=True, kw_only=True)
class BradleyTerry:
    """A reward model, trained on pairs of answers: the probability of the human's preference.

    loss = -log sigmoid(r(chosen) - r(rejected) - margin) + centre (r(chosen) + r(rejected))^2

    margin   use the difference of the rows' rewards, where a pair has both; 0 for other pairs
    centre   regularisation of the mean reward towards 0, which the preferences leave open

    Source   Ouyang et al., arXiv 2203.02155, equation 1; margin: Touvron et al., arXiv 2307.09288,
             equation 2; centre: Eisenstein et al., arXiv 2312.09244
    """

    margin: bool = False
    centre: float = 0.0

    def __post_init__(self) -> None:
        validate(self, ("centre", 0 <= self.centre < math.inf, "must be finite and not negative"))


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """Group-relative policy gradient on answers that the model gives during training (`align.grpo`).

    The advantage of an answer is its reward less the mean of the answers to the same prompt, divided by
    their standard deviation (G - 1 in its divisor, nothing added to it).

    beta               weight of the KL to the start model in the loss; 0: no reference is held (DAPO)
    clip_low, clip_high   range of the ratio to the policy that sampled: 1 - clip_low to 1 + clip_high
                       (DAPO: 0.2, 0.28). Read with steps_per_rollout above 1: before the first update
                       the ratio is 1
    scale              "std", or "none": no division by the standard deviation (Dr. GRPO)
    average            of a step's tokens: "answer", the mean over each answer's tokens, then over answers;
                       "token", over all tokens (DAPO); "longest", every token weighs 1 /
                       sampling.max_new_tokens (Dr. GRPO)
    drop_equal         dynamic sampling: groups of equal rewards are dropped, and other prompts are
                       answered in their place
    refills            how often other prompts are answered for one rollout; then a step has fewer groups
    overlong           answers cut at sampling.max_new_tokens: "keep"; "mask", no loss; "penalty", the
                       soft penalty of DAPO on the reward
    overlong_tokens    with "penalty": it grows from 0 to 1 over so many tokens before the longest
    steps_per_rollout  updates on the answers to one sampling, on other prompts each

    Source   arXiv 2402.03300 (GRPO), 2503.14476 (DAPO), 2503.20783 (Dr. GRPO)
    """

    beta: float = 0.04
    clip_low: float = 0.2
    clip_high: float = 0.2
    scale: AdvantageScale = "std"
    average: TokenAverage = "answer"
    drop_equal: bool = False
    refills: int = 4
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    overlong_tokens: int = 64
    steps_per_rollout: int = 1

    def __post_init__(self) -> None:
        several = self.steps_per_rollout > 1
        unclipped = "is read with steps_per_rollout above 1: on its own rollout the ratio is 1"
        validate(
            self,
            ("beta", 0 <= self.beta < math.inf, "must be finite and not negative"),
            ("clip_low", 0 < self.clip_low < 1, "must lie between 0 and 1"),
            ("clip_high", 0 < self.clip_high < math.inf, _POSITIVE),
            ("clip_low", several or self.clip_low == 0.2, unclipped),
            ("clip_high", several or self.clip_high == 0.2, unclipped),
            ("refills", self.refills >= 0, "must not be negative"),
            ("refills", self.drop_equal or self.refills == 4, "is read with drop_equal=true"),
            ("overlong_tokens", self.overlong_tokens >= 1, "must be at least 1"),
            (
                "overlong_tokens",
                self.overlong == "penalty" or self.overlong_tokens == 64,
                "is read with overlong=penalty",
            ),
            ("steps_per_rollout", self.steps_per_rollout >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class PFO:
    """Proximal Feature Optimization: keep the last hidden states near those of the start model.

    Adds weight times the mean over answer tokens of `feature_distances`. Experimental: no result for
    language models is published.

    weight     0: no term, no second model
    distance   "squared", as published; "relative"; "cosine"
    features   "before_norm": the residual stream behind the last layer, which grows where training
               lets it, as the published pre-activations do; "after_norm": what the output matrix reads,
               whose length the final norm fixes

    Source   Moalla et al., arXiv 2405.00662
    """

    weight: float = 1.0
    distance: FeatureDistance = "relative"
    features: Literal["before_norm", "after_norm"] = "before_norm"

    def __post_init__(self) -> None:
        validate(self, ("weight", 0 <= self.weight < math.inf, "must be finite and not negative"))


Preference = QRPO | DPO | SimPO | REBEL | KTO
Loss = SFT | Preference | BradleyTerry | GRPO


def needs_reference(loss: Loss) -> bool:
    """Whether a loss reads stored log-probabilities of the reference policy."""
    return not isinstance(loss, SFT | SimPO | BradleyTerry | GRPO)
