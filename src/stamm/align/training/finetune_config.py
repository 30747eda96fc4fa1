"""Configuration of fine-tuning. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from stamm.align.training.loss_config import GRPO, PFO, SFT, BradleyTerry, Loss, Preference
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.engine.config import EIGHT_BITS
from stamm.models.lora_config import Lora
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchPlan, BatchStage, Schedule, WarmupStableDecay
from stamm.pretrain.config import NEXT_TOKEN, DecoderTrainingConfig, TrainingConfig

OWN_RATE, SFT_RATE, PREFERENCE_RATE, LORA_FACTOR = 1e-4, 5e-6, 5e-7, 10


@dataclass(frozen=True, kw_only=True)
class FineTuneSchedule(WarmupStableDecay):
    """A learning rate that falls linearly from its peak.

    peak   0: by the start model. A model that was trained here: 1e-4. An imported one: 5e-6, and 5e-7
           for preference losses, as in Apertus' post-training. With LoRA ten times as much

    Source   Apertus technical report, arXiv 2509.14233, section 4; LoRA: Schulman et al. 2025, "LoRA
             Without Regret"
    """

    peak: float = 0.0
    decay_share: float = 1.0
    law: Literal["1-sqrt", "linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        checked = self if self.peak else replace(self, peak=1.0)
        WarmupStableDecay.__post_init__(checked)


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(TrainingConfig):
    """Fine-tuning of a trained model on prepared examples.

    loss    what is minimised: SFT, QRPO, DPO, SimPO, REBEL, KTO, BradleyTerry or GRPO
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
    a learning rate that falls linearly (`FineTuneSchedule` has its peak), one epoch.

    Source   Apertus technical report, arXiv 2509.14233, section 4
    """

    batch: tuple[BatchStage, ...] = (BatchStage(size=16),)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: AdEMAMix(beta2=0.999, beta3=0.999, alpha=8.0, weight_decay=0.0)
    )
    schedule: FineTuneSchedule | Schedule = field(default_factory=FineTuneSchedule)
    loss: Loss = field(default_factory=SFT)
    pfo: PFO | None = None
    lora: Lora | None = None
    validate_every: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pfo, parallel = self.pfo is not None, self.engine.parallel
        whole = parallel.context == parallel.tensor == 1
        every, patience = self.validate_every, self.patience
        validate(
            self,
            ("validate_every", every is None or every >= 1, "must be at least 1"),
            ("patience", patience is None or patience >= 1, "must be at least 1"),
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
        """Of supervised fine-tuning, as in `SFT`."""
        return self.loss.objective if isinstance(self.loss, SFT) else NEXT_TOKEN

    def user_code(self) -> dict[str, str]:
        """As in `TrainingConfig`, with the objective of supervised fine-tuning."""
        own = {} if self.objective == NEXT_TOKEN else {"objective": self.objective}
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
              (`align.training.chosen_settings`)
    rate_from   what the peak of the learning rate follows from; "": it was set
    """

    context: int
    chosen: str = ""
    rate_from: str = ""

    @classmethod
    def of(cls, settings: FineTuneConfig, *, imported: bool = False, **more: Any) -> Self:
        """These settings with more fields, and the peak of the learning rate where none is set.

        imported   whether the start model, or the one that it was tuned from, was trained elsewhere
        """
        values = {f.name: getattr(settings, f.name) for f in fields(settings)}
        if not settings.schedule.peak:
            preference = isinstance(settings.loss, Preference)
            imported_rate = PREFERENCE_RATE if preference else SFT_RATE
            peak = imported_rate if imported else OWN_RATE
            basis = "an imported model" if imported else "a model that was trained here"
            if settings.lora is not None:
                peak, basis = LORA_FACTOR * peak, f"LoRA on {basis}"
            values["schedule"] = replace(settings.schedule, peak=peak)
            values["rate_from"] = f"{type(settings.loss).__name__} of {basis}"
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
        names = {f.name for f in fields(config)} & {f.name for f in fields(cls)}
        return cls(**{**{name: getattr(config, name) for name in names}, **more})

    @property
    def task(self) -> str:
        """Name of the training for the progress bar."""
        return f"fine-tune by {type(self.loss).__name__}"

    @property
    def z_loss(self) -> float:
        """Of supervised fine-tuning, as in `SFT`."""
        return self.loss.z_loss if isinstance(self.loss, SFT) else 0.0

    @property
    def reward_head(self) -> bool:
        """Whether a reward model is trained."""
        return isinstance(self.loss, BradleyTerry)
