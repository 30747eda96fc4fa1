"""Arms of studies and comparisons: a feed-forward block, and other changes of the recipe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stamm.base.bounds import Positive, PositiveShare
from stamm.base.config import Bounded, validate
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN, Structured
from stamm.optim.config import OptimizerConfig
from stamm.optim.schedules import Schedule
from stamm.pretrain.config import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class ArmOverrides(Bounded):
    """Changes of an arm beside its feed-forward block; None: as in the recipe.

    schedule      a comparison chooses its peak by tuning
    rates         learning rates to choose from in a comparison, in place of `tuning.rates`
    goldfish      Goldfish loss mask, where the recipe trains on every token or by another mask
    structured    use and training of structured matrices; of `ffn.linear`
    init_std      standard deviation of every matrix at the start
    length        share of the tokens of the other arms, to see whether it needs no more; in a
                  comparison with EqualParameters
    """

    optimizer: OptimizerConfig | None = None
    schedule: Schedule | None = None
    rates: tuple[Positive, ...] | None = None
    goldfish: Goldfish | None = None
    qk_norm: bool | None = None
    structured: Structured | None = None
    init_std: Positive | None = None
    length: PositiveShare | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One candidate: its name in the run folder, its feed-forward block, and other changes."""

    name: str = "xielu"
    ffn: PlainFFN | GatedFFN = field(default_factory=PlainFFN)
    overrides: ArmOverrides = field(default_factory=ArmOverrides)

    def __post_init__(self) -> None:
        plain = self.name.replace("_", "").replace("-", "")
        validate(
            self, ("name", plain.isalnum() and plain.isascii(), "must be letters, digits, - and _")
        )

    def model_of(self, base: DecoderConfig) -> DecoderConfig:
        """The decoder of the arm, in a recipe with the decoder `base`."""
        model, given = replace(base, ffn=self.ffn), self.overrides
        if given.qk_norm is not None:
            model = replace(model, qk_norm=given.qk_norm)
        if given.init_std is not None:
            model = replace(model, init_std=given.init_std)
        return model if given.structured is None else replace(model, structured=given.structured)

    def pretrain_of(self, base: PretrainConfig) -> PretrainConfig:
        """The pretraining run of the arm, in a recipe with the run `base`."""
        given = self.overrides
        return replace(
            base,
            model=self.model_of(base.model),
            optimizer=given.optimizer or base.optimizer,
            schedule=given.schedule or base.schedule,
            goldfish=given.goldfish or base.goldfish,
        )
