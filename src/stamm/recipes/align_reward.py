"""Recipe of a reward model: Bradley-Terry on preference pairs, and its accuracy on held-out pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from stamm.align.data.config import DataSource, PrepareConfig, PrepareSettings
from stamm.align.steps import offline_steps
from stamm.align.training.config import (
    BradleyTerry,
    FineTuneConfig,
    ReferenceConfig,
    RewardAccuracyConfig,
)
from stamm.base.bounds import at_least
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.pages.config import ReportConfig
from stamm.recipes.align import context_of, loss_check, on_answers
from stamm.recipes.start_model import start_model
from stamm.reports.steps import report_step
from stamm.runs.job import Step

_ARM = "reward"


@dataclass(frozen=True, kw_only=True)
class RewardModelRecipe:
    """A reward model of preference pairs, trained from a trained model.

    `stamm score FILE reward=ModelReward reward.run=RUN` rates answers with the result.

    run        folder of a run or of one of its arms, or a Hugging Face folder; required
    arm        of a run with several
    data       files of rows with prompt, chosen and rejected; or
    mixture    sources of such files with weights
    context    longest answer in tokens, prompt included; None: the model's, at most 4,096
    prepare    how rows become training examples
    accuracy   on the pairs that prepare.held_out keeps from training
    """

    run: str = ""
    arm: str | None = None
    data: tuple[str, ...] = ()
    mixture: tuple[DataSource, ...] = ()
    context: Annotated[int, at_least(2)] | None = None
    prepare: PrepareSettings = field(default_factory=lambda: PrepareSettings(held_out=0.1))
    train: FineTuneConfig = field(default_factory=lambda: on_answers(BradleyTerry()))
    accuracy: RewardAccuracyConfig = field(default_factory=RewardAccuracyConfig)
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        validate(self, loss_check(self.train.loss, BradleyTerry))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when run or data is empty; what finding the model raises
        """
        if not (self.data or self.mixture):
            raise ConfigError("there is nothing to train on: data is empty", fix="Set data=FILE")
        start = start_model(self.run, self.arm, root)
        context = context_of(self.context, start)
        prepare = PrepareConfig.of(
            self.prepare, data=self.data, mixture=self.mixture, context=context, kind="preference"
        )
        training = offline_steps(self.train, _ARM, start, prepare, ReferenceConfig())
        accuracy = Step(
            name=f"reward_accuracy.{_ARM}",
            job="reward_accuracy",
            config=self.accuracy,
            folder=f"arms/{_ARM}/accuracy",
            inputs={
                "model": f"arms/{_ARM}/model",
                "tokenizer": start.tokenizer,
                "data": training[0].folder,
            },
            external=start.external,
            outputs=("accuracy.json",),
        )
        steps = [*start.steps, *training, accuracy]
        return (*steps, report_step(self.report))


def reward() -> RewardModelRecipe:
    """A reward model of preference pairs, with its held-out accuracy; set run=FOLDER data=FILE."""
    return RewardModelRecipe()
