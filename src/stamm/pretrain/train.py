"""Train a decoder on the objective that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.user_code import load_reference
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import Objective
from stamm.engine.trainer import EarlyStopping, Evaluator, InitialCheckpoint
from stamm.engine.trainer_setup import TrainedModel, fit
from stamm.models.decoder import Decoder
from stamm.pretrain.config import NEXT_TOKEN, DecoderTrainingConfig
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.next_token import NextToken
from stamm.pretrain.periodic_evaluation import make_evaluator
from stamm.runs.job import Workspace

MakeObjective = Callable[[Any, Decoder, TrainingSequences[Any], DistributedContext], Objective]

MakeValidation = Callable[[Any, Decoder, int, DistributedContext], Evaluator]
"""From the configuration, the decoder and the number of steps."""


def train_decoder(
    config: DecoderTrainingConfig,
    workspace: Workspace,
    world: DistributedContext,
    windows: TrainingSequences[Any],
    make: MakeObjective = NextToken,
    start: InitialCheckpoint | None = None,
    validation: MakeValidation | None = None,
    stopping: EarlyStopping | None = None,
) -> TrainedModel:
    """Train `config.model` on `windows`, from the newest checkpoint or the beginning, to the end.

    make     makes the objective
    start    weights to start from; None: random weights
    validation   makes a further evaluation during training; None: only that of `config.evaluate`
    stopping   early stopping by a metric of the evaluations; None: none

    Raises   what `engine.trainer_setup.fit` raises, and ConfigError for what is not an objective
    """

    def objective(decoder: Decoder) -> Objective:
        made = make(config, decoder, windows, world)
        if not isinstance(made, Objective):
            raise ConfigError(
                f"{config.user_code().get('objective', make)} makes {type(made).__name__}, which is "
                "not an objective",
                fix="Subclass stamm.pretrain.next_token.NextToken",
            )
        return made

    num_steps = config.batches(config.total_sequences(windows.per_epoch)).num_steps

    def evaluator(decoder: Decoder) -> Evaluator | None:
        sampled = make_evaluator(config, decoder, num_steps, workspace, world)
        if validation is None:
            return sampled
        validate = validation(config, decoder, num_steps, world)
        return lambda step: {**validate(step), **(sampled(step) if sampled else {})}

    return fit(config, objective, num_steps, workspace, world, start, evaluator, stopping)


def load_objective(name: str) -> MakeObjective:
    """The class of the objective "next-token", or of a user's, "mine.py:MyObjective".

    Raises   ConfigError when it cannot be loaded or is not a class
    """
    if name == NEXT_TOKEN:
        return NextToken
    found: Any = load_reference(name, None, "an objective")
    if not isinstance(found, type):
        raise ConfigError(
            f"objective = {name!r} is not a class",
            fix="Name a subclass of stamm.pretrain.next_token.NextToken",
        )
    make: MakeObjective = found
    return make
