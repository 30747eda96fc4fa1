"""Configuration of fine-tuning: that of a pretraining run, on other data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from stamm.align.training.loss_config import PFO, SFT, BradleyTerry, Loss, Preference
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.engine.config import EIGHT_BITS
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig
from stamm.models.lora_config import Lora
from stamm.optim.config import AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchStage, Schedule, WarmupStableDecay
from stamm.pretrain.config import MegatronFiles, PretrainConfig

_ANY_CONTEXT = 2**24


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(PretrainConfig):
    """Fine-tuning of a trained model on prepared examples.

    loss    what is minimised: SFT, QRPO, DPO, SimPO, REBEL, KTO or BradleyTerry
    batch   SFT: packed sequences a step. Others: examples a step, an answer or a pair of answers
    epochs, sequences   likewise counted in packed sequences or examples
    model   replaced by that of the start model
    pfo     distance to the features of the start model, beside a loss on answers; None: none
    lora    adapters to train beside frozen weights; None: all parameters are trained
    chosen  "", or an entry of an input file with the settings that an earlier step chose
            (`align.training.chosen_settings`)

    The other fields are those of `PretrainConfig`. Defaults follow Apertus: AdEMAMix, no weight decay,
    a learning rate that falls linearly, one epoch.

    Source   Apertus technical report, arXiv 2509.14233, section 4
    """

    model: DecoderConfig = field(default_factory=lambda: DecoderConfig(max_context=_ANY_CONTEXT))
    goldfish: Goldfish | None = None
    batch: tuple[BatchStage, ...] = (BatchStage(size=16),)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: AdEMAMix(beta2=0.999, beta3=0.999, alpha=8.0, weight_decay=0.0)
    )
    schedule: Schedule = field(
        default_factory=lambda: WarmupStableDecay(peak=1e-4, decay_share=1.0, law="linear")
    )
    loss: Loss = field(default_factory=SFT)
    pfo: PFO | None = None
    lora: Lora | None = None
    chosen: str = ""

    def total_sequences(self, corpus_sequences: int | None = None) -> int:
        """Length of the run in packed sequences or examples, given how many the data holds.

        Raises   as in pretraining
        """
        size = self.batch[0].size
        if self.sequences is None and corpus_sequences is not None:
            total = int(corpus_sequences * self.epochs)
            if total < size:
                what = "packed sequences" if isinstance(self.loss, SFT) else "examples"
                raise ConfigError(
                    f"the data gives {total} {what}, fewer than one batch of {size}",
                    fix="Add rows, or lower train.batch.0.size",
                )
        return super().total_sequences(corpus_sequences)

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = "is not used in fine-tuning: leave it out"
        files = [f.name for f in fields(self) if isinstance(getattr(self, f.name), MegatronFiles)]
        pfo, parallel = self.pfo is not None, self.engine.parallel
        whole = parallel.context == parallel.tensor == 1
        validate(
            self,
            *((name, False, unused) for name in files),
            ("goldfish", self.goldfish is None, unused),
            ("pack", not self.pack, unused),
            ("tuned", not self.tuned, unused),
            ("begin", self.begin is None, "is the recipe's run= in fine-tuning: leave it out"),
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
    def reward_head(self) -> bool:
        """Whether a reward model is trained."""
        return isinstance(self.loss, BradleyTerry)
