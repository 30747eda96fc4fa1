"""Configuration of step timing: arms of a comparison that train for equal time. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from stamm.base.bounds import AtLeastOne, PositiveShare
from stamm.base.config import validate
from stamm.pretrain.config import PretrainConfig

STEP_TIMING = "step_timing.json"


@dataclass(frozen=True, kw_only=True)
class TimedArm:
    """An arm, and its training run with the length of the baseline."""

    name: str
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)


@dataclass(frozen=True, kw_only=True)
class StepTimingConfig:
    """Arms that train for the same time.

    baseline       the arm whose length in steps is given; the others are derived from it
    short          length of a short run, as a fraction of the long one
    rounds         how often each arm is measured, in turns
    warmup_steps   first steps, which are not counted: they compile
    steps          steps that are counted
    """

    arms: tuple[TimedArm, ...]
    baseline: str
    short: PositiveShare
    rounds: AtLeastOne = 3
    warmup_steps: AtLeastOne = 5
    steps: AtLeastOne = 10

    def __post_init__(self) -> None:
        named = {arm.name for arm in self.arms}
        validate(self, ("baseline", self.baseline in named, "is not an arm"))
