"""Configuration of training on a model's own answers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from stamm.align.rewards.reward_config import Number, RewardConfig
from stamm.align.training.finetune_config import FineTuneJobConfig, FineTuneRun
from stamm.base.config import validate
from stamm.models.sampling_config import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Answers that the model gives during training, and their reward.

    n          answers to each prompt: a group
    sampling   of the policy itself: temperature, top_k and top_p stay 1, 0 and 1
    reward     of an answer
    """

    n: int = 8
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig = field(default_factory=Number)

    def __post_init__(self) -> None:
        sampling = self.sampling
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p) == (1, 0, 1)
        changed = (
            "draws from another distribution than the policy: leave temperature, top_k and top_p"
        )
        validate(
            self,
            ("n", self.n >= 2, "must be at least 2: an advantage compares answers"),
            ("sampling", drawn, changed),
        )


@dataclass(frozen=True, kw_only=True)
class GRPOJobConfig(FineTuneJobConfig, Rollouts):
    """The settings of a step that trains on its own answers.

    prompts   file of the prompts
    """

    prompts: str = ""

    def __post_init__(self) -> None:
        FineTuneJobConfig.__post_init__(self)
        Rollouts.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class GRPORun(FineTuneRun, Rollouts):
    """Training of one model on its own answers: the configuration that an arm records."""
