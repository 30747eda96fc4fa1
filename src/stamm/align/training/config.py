"""Configuration of fine-tuning: losses, schedules, runs, reference log-probabilities. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, Self

from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.preference_loss import OwnPreferenceLoss, PreferenceLoss
from stamm.align.losses.qrpo import QRPO
from stamm.align.rewards.config import Number, RewardConfig
from stamm.base.bounds import AtLeastOne, Natural, NotNegative, Positive, Share, at_least, within
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError
from stamm.engine.config import EIGHT_BITS
from stamm.losses.preference_types import (
    AdvantageScale,
    FeatureDistance,
    TokenAverage,
)
from stamm.models.lora_config import Lora
from stamm.models.sampling_config import SamplingConfig
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchPlan, BatchStage, ConstantRate, Schedule, WarmupStableDecay
from stamm.pretrain.config import NEXT_TOKEN, DecoderTrainingConfig, TrainingConfig, objective_check


@dataclass(frozen=True, kw_only=True)
class SFT:
    """Supervised fine-tuning: next-token prediction of what the assistant writes.

    Prompts, tool outputs and padding have no loss. The mean is over the supervised tokens of the
    whole step.

    z_loss      weight of the mean of log(Z)^2, a separate metric beside the loss
    objective   "next-token", or a subclass of it, "mine.py:MyObjective" (docs/extending/objective.md)
    """

    z_loss: NotNegative = 0.0
    objective: str = NEXT_TOKEN

    def __post_init__(self) -> None:
        validate(self, ("objective", *objective_check(self.objective)))


@dataclass(frozen=True, kw_only=True)
class BradleyTerry(Bounded):
    """A reward model, trained on pairs of answers: the probability of the human's preference.

    loss = -log sigmoid(r(chosen) - r(rejected) - margin) + centre (r(chosen) + r(rejected))^2

    margin   use the difference of the rows' rewards, where a pair has both; 0 for other pairs
    centre   regularisation of the mean reward towards 0, which the preferences leave open

    Source   Ouyang et al., arXiv 2203.02155, equation 1; margin: Touvron et al., arXiv 2307.09288,
             equation 2; centre: Eisenstein et al., arXiv 2312.09244
    """

    margin: bool = False
    centre: NotNegative = 0.0


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

    beta: NotNegative = 0.04
    clip_low: Annotated[float, within("(0, 1)")] = 0.2
    clip_high: Positive = 0.2
    scale: AdvantageScale = "std"
    average: TokenAverage = "answer"
    drop_equal: bool = False
    refills: Natural = 4
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    overlong_tokens: AtLeastOne = 64
    steps_per_rollout: AtLeastOne = 1

    def __post_init__(self) -> None:
        several = self.steps_per_rollout > 1
        unclipped = "is read with steps_per_rollout above 1: on its own rollout the ratio is 1"
        validate(
            self,
            ("clip_low", several or self.clip_low == 0.2, unclipped),
            ("clip_high", several or self.clip_high == 0.2, unclipped),
            ("refills", self.drop_equal or self.refills == 4, "is read with drop_equal=true"),
            (
                "overlong_tokens",
                self.overlong == "penalty" or self.overlong_tokens == 64,
                "is read with overlong=penalty",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class PFO(Bounded):
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

    weight: NotNegative = 1.0
    distance: FeatureDistance = "relative"
    features: Literal["before_norm", "after_norm"] = "before_norm"


Preference = QRPO | DPO | SimPO | REBEL | KTO | OwnPreferenceLoss
Loss = SFT | Preference | BradleyTerry | GRPO


def preference_loss(loss: Preference) -> PreferenceLoss:
    """The loss, loaded where it is a user's."""
    return loss.loaded() if isinstance(loss, OwnPreferenceLoss) else loss


def needs_reference(loss: Loss) -> bool:
    """Whether a loss reads stored log-probabilities of the reference policy."""
    return isinstance(loss, Preference) and preference_loss(loss).NEEDS_REFERENCE


def loss_name(loss: Loss) -> str:
    """Name of the class, of a user's loss that of its own: "DPO"."""
    return loss.name if isinstance(loss, OwnPreferenceLoss) else type(loss).__name__


OWN_RATE, SFT_RATE, PREFERENCE_RATE, GRPO_RATE, LORA_FACTOR = 1e-4, 5e-6, 5e-7, 1e-6, 10


@dataclass(frozen=True, kw_only=True)
class FineTuneSchedule(WarmupStableDecay):
    """A learning rate that falls linearly from its peak.

    peak   0: by the start model. A model that was trained here: 1e-4. An imported one: 5e-6, and 5e-7
           for preference losses, as in Apertus' post-training. With LoRA ten times as much

    Source   Apertus technical report, arXiv 2509.14233, section 4; LoRA: Schulman et al. 2025, "LoRA
             Without Regret"
    """

    peak: NotNegative = 0.0
    decay_share: Share = 1.0
    law: Literal["1-sqrt", "linear", "cosine"] = "linear"


@dataclass(frozen=True, kw_only=True)
class OnPolicySchedule(ConstantRate):
    """A constant learning rate after ten steps of warm-up.

    peak   0: by the loss. GRPO: 1e-6; others as in `FineTuneSchedule`. With LoRA ten times as much

    Source   DAPO, arXiv 2503.14476, section 4.1; LoRA: as `FineTuneSchedule`
    """

    peak: NotNegative = 0.0
    warmup_sequences: Natural = 160


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(TrainingConfig):
    """Fine-tuning of a trained model on prepared examples.

    loss    what is minimised: SFT, QRPO, DPO, SimPO, REBEL, KTO, BradleyTerry, GRPO, or a preference loss
            of your own, "mine.py:MyLoss" (docs/extending/preference_loss.md)
    batch   SFT: packed sequences a step. GRPO: prompts. Others: examples, an answer or a pair of answers.
            The last step of a run has those that remain
    epochs, sequences   likewise counted in packed sequences or examples
    pfo     distance to the features of the start model, beside a loss on answers; None: none
    lora    adapters to train beside frozen weights; None: all parameters are trained
    validate_every   steps between evaluations on held-out rows (`prepare.held_out`), which are evaluated
            before and after training, too; None: so many that there are at most ten, which take at
            most about 5 % of the time
    patience   early stopping: training ends after so many evaluations on held-out rows without a lower
            loss, and the weights of the lowest one are kept; None: no early stopping

    The other fields are those of `TrainingConfig`. Defaults follow Apertus: AdEMAMix, no weight decay,
    a learning rate that falls linearly (`FineTuneSchedule` has its peak), one epoch. GRPO's are AdamW
    and `OnPolicySchedule`.

    Source   Apertus technical report, arXiv 2509.14233, section 4
    """

    batch: tuple[BatchStage, ...] = (BatchStage(size=16),)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: AdEMAMix(beta2=0.999, beta3=0.999, alpha=8.0, weight_decay=0.0)
    )
    schedule: FineTuneSchedule | OnPolicySchedule | Schedule = field(
        default_factory=FineTuneSchedule
    )
    loss: Loss = field(default_factory=SFT)
    pfo: PFO | None = None
    lora: Lora | None = None
    validate_every: AtLeastOne | None = None
    patience: AtLeastOne | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pfo, parallel = self.pfo is not None, self.engine.parallel
        whole = parallel.context == parallel.tensor == 1
        every, patience = self.validate_every, self.patience
        validate(
            self,
            *(
                (name, value is None or not isinstance(self.loss, GRPO), "needs held-out rows")
                for name, value in (("validate_every", every), ("patience", patience))
            ),
            (
                "pfo",
                not pfo or isinstance(self.loss, Preference),
                f"is not defined for {type(self.loss).__name__}: leave it out",
            ),
            (
                "pfo",
                not pfo or whole,
                "needs engine.parallel.context=1 and engine.parallel.tensor=1",
            ),
            (
                "pfo",
                not pfo or self.engine.precision not in EIGHT_BITS,
                "needs engine.precision=float32 or bfloat16",
            ),
        )

    @property
    def objective(self) -> str:
        """`SFT.objective` in supervised fine-tuning, else "next-token"."""
        return self.loss.objective if isinstance(self.loss, SFT) else NEXT_TOKEN

    def user_code(self) -> dict[str, str]:
        """As in `TrainingConfig`, with the objective of supervised fine-tuning and a loss of the user's."""
        own = {} if self.objective == NEXT_TOKEN else {"objective": self.objective}
        if isinstance(self.loss, OwnPreferenceLoss):
            own["loss"] = self.loss.reference
        return {**own, **super().user_code()}

    def total_sequences(self, per_epoch: int | None = None) -> int:
        """Length of the run in packed sequences or examples, given how many the data holds.

        Raises   ConfigError when the length depends on the data and is unknown or 0
        """
        total = super().total_sequences(per_epoch)
        if not total:
            what = {SFT: "packed sequences", GRPO: "prompts"}.get(type(self.loss), "examples")
            raise ConfigError(
                f"{per_epoch} {what} times epochs = {self.epochs} is less than one",
                fix="Add rows, or raise train.epochs",
            )
        return total

    def batches(self, total_sequences: int) -> BatchPlan:
        """Sequences of each step; the last step has those that remain."""
        return BatchPlan(self.batch, total_sequences, partial_last_step=True)


@dataclass(frozen=True, kw_only=True)
class FineTuneJobConfig(FineTuneConfig):
    """The settings of a fine-tuning step, of which a recipe sets those that follow from others.

    context   tokens of a sequence
    chosen    "", or an entry of an input file with the settings that an earlier step chose
              (`align.training.job`)
    rate_from   what the peak of the learning rate follows from; "": it was set
    """

    context: Annotated[int, at_least(2)]
    chosen: str = ""
    rate_from: str = ""

    @classmethod
    def of(cls, settings: FineTuneConfig, *, imported: bool = False, **more: Any) -> Self:
        """These settings with more fields, and the peak of the learning rate where none is set.

        imported   whether the start model, or the one that it was tuned from, was trained elsewhere
        """
        values = dict(vars(settings))
        if not settings.schedule.peak:
            preference = isinstance(settings.loss, Preference)
            imported_rate = PREFERENCE_RATE if preference else SFT_RATE
            peak = imported_rate if imported else OWN_RATE
            basis = "an imported model" if imported else "a model that was trained here"
            if isinstance(settings.loss, GRPO):
                peak, basis = GRPO_RATE, "any model"
            if settings.lora is not None:
                peak, basis = LORA_FACTOR * peak, f"LoRA on {basis}"
            values["schedule"] = replace(settings.schedule, peak=peak)
            values["rate_from"] = f"{loss_name(settings.loss)} of {basis}"
        return cls(**values, **more)

    def rate_remark(self) -> str:
        """A line on the peak of the learning rate where it was not set; else ""."""
        if not self.rate_from:
            return ""
        return (
            f"Learning rate {self.schedule.peak:g}, the default for {self.rate_from}: "
            "train.schedule.peak sets another."
        )


@dataclass(frozen=True, kw_only=True)
class FineTuneRun(FineTuneConfig, DecoderTrainingConfig):
    """Fine-tuning of one model: the configuration that an arm records."""

    @classmethod
    def of(cls, config: FineTuneJobConfig, **more: Any) -> Self:
        """The run that a step describes, with more fields."""
        names = {f.name for f in fields(cls)}
        shared = {name: value for name, value in vars(config).items() if name in names}
        return cls(**{**shared, **more})

    @property
    def task(self) -> str:
        """Name of the training for the progress bar."""
        return f"fine-tune by {loss_name(self.loss)}"

    @property
    def z_loss(self) -> float:
        """`SFT.z_loss` in supervised fine-tuning, else 0."""
        return self.loss.z_loss if isinstance(self.loss, SFT) else 0.0

    @property
    def reward_head(self) -> bool:
        """Whether a reward model is trained."""
        return isinstance(self.loss, BradleyTerry)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Answers that the model gives during training, and their reward.

    n          answers to each prompt: a group
    sampling   of the policy itself: temperature, top_k and top_p stay 1, 0 and 1
    reward     of an answer
    """

    n: Annotated[int, at_least(2, ": an advantage compares answers")] = 8
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig = field(default_factory=Number)

    def __post_init__(self) -> None:
        sampling = self.sampling
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p) == (1, 0, 1)
        changed = (
            "draws from another distribution than the policy: leave temperature, top_k and top_p"
        )
        validate(self, ("sampling", drawn, changed))


@dataclass(frozen=True, kw_only=True)
class GRPOJobConfig(FineTuneJobConfig, Rollouts):
    """The settings of a step that trains on its own answers.

    prompts   file of the prompts
    """

    prompts: str = ""

    def __post_init__(self) -> None:
        FineTuneJobConfig.__post_init__(self)
        Rollouts.__post_init__(self)
        why = "is not for GRPO, which samples by the kernels that are faster on a machine"
        validate(self, ("engine.portable_bits", not self.engine.portable_bits, why))


@dataclass(frozen=True, kw_only=True)
class GRPORun(FineTuneRun, Rollouts):
    """Training of one model on its own answers: the configuration that an arm records."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(Bounded):
    """Log-probabilities of prepared answers under the model that training starts from.

    batch_tokens        of one forward pass, padding included
    device              "auto" uses a GPU where there is one, by one process
    answers_per_shard   answers that are computed and proven together
    mismatched          also of prompts with answers to others, for losses that read KL
    """

    batch_tokens: AtLeastOne = 16_384
    answers_per_shard: AtLeastOne = 4096
    mismatched: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class RewardAccuracyConfig(Bounded):
    """Accuracy of a reward model on held-out pairs.

    batch_tokens   of one forward pass, padding included; a longer answer runs alone
    device         "auto" uses a GPU where there is one
    """

    batch_tokens: AtLeastOne = 16_384
    device: Literal["auto", "cpu", "cuda"] = "auto"
