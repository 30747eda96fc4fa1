"""Train a decoder on the objective that a configuration names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.errors import ConfigError, StammError
from stamm.base.user_code import check_call, guarded, load_reference, source_file
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import MicroBatches, Objective, StepLoss
from stamm.engine.out_of_memory import out_of_memory_explained
from stamm.engine.portable_bits import check_portable, portable_bits
from stamm.engine.trainer import CompileError, EarlyStopping, Evaluator, InitialCheckpoint
from stamm.engine.trainer_setup import TrainedModel, fit
from stamm.models.decoder import Decoder
from stamm.pretrain.config import NEXT_TOKEN, DecoderTrainingConfig
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.next_token import NextToken
from stamm.pretrain.periodic_evaluation import make_evaluator
from stamm.runs.job import Workspace

_RETURNED = {
    "step_loss": StepLoss,
    "micro_batches": MicroBatches,
    "metrics": Mapping,
    "learning_rate": Real,
    "num_items": Real,
    "flops": Real,
    "fraction_done": Real,
}
"""What methods of an objective return."""
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
    check: BackgroundCheck | None = None,
    until: int | None = None,
) -> TrainedModel:
    """Train `config.model` on `windows`, from the newest checkpoint or the beginning, to the end.

    make     makes the objective
    start    weights to start from; None: random weights
    validation   makes a further evaluation during training; None: only that of `config.evaluate`
    stopping   early stopping by a metric of the evaluations; None: none
    check      a check of the data that the first checkpoint waits for; None: none
    until      the step to stop at; None: the last

    Raises   what `engine.trainer_setup.fit` and `engine.portable_bits.check_portable` raise, and ConfigError for
             what is not an objective
    """

    def objective(decoder: Decoder) -> Objective:
        return make(config, decoder, windows, world)

    num_steps = config.batches(config.total_sequences(windows.per_epoch)).num_steps

    def evaluator(decoder: Decoder) -> Evaluator | None:
        sampled = make_evaluator(config, decoder, num_steps, workspace, world)
        if validation is None:
            return sampled
        validate = validation(config, decoder, num_steps, world)
        return lambda step: {**validate(step), **(sampled(step) if sampled else {})}

    if config.engine.portable_bits:
        check_portable(world.device, world.size)
    with portable_bits(config.engine):
        return fit(
            config, objective, num_steps, workspace, world, start, evaluator, stopping, check, until
        )


def objective_class(name: str) -> type:
    """The class of a user's objective, "mine.py:MyObjective".

    Raises   ConfigError when it cannot be loaded or is not a class
    """
    objective: Any = load_reference(name, None, "an objective")
    if not isinstance(objective, type):
        raise ConfigError(
            f"objective = {name!r} is not a class",
            fix="Name a subclass of stamm.pretrain.next_token.NextToken",
        )
    return objective


def load_objective(name: str) -> MakeObjective:
    """Makes the objective "next-token", or a user's, whose errors are reported with their line.

    Raises   ConfigError as `objective_class`
    """
    if name == NEXT_TOKEN:
        return NextToken
    kind = objective_class(name)
    return functools.partial(_make_own, kind, source_file(name, kind))


def _make_own(kind: type, file: Path, *given: Any) -> Objective:
    """A user's objective; its methods report what they raise, and the type of what they return."""
    check_call(kind, file, given, "config, decoder, sequences and world, as NextToken is")
    made: Any = _own(file, lambda: kind(*given))
    names = {*Objective.__annotations__, *vars(Objective)}
    missing = sorted(n for n in names if not n.startswith("_") and not hasattr(made, n))
    if missing:
        raise ConfigError(
            f"{kind.__name__} is not an objective: it has no {', '.join(missing)}",
            where=str(file),
            fix="Subclass stamm.pretrain.next_token.NextToken, and call super().__init__ in __init__",
        )
    for base in kind.__mro__:
        for name, value in vars(base).items() if base.__module__ == kind.__module__ else ():
            if inspect.isfunction(value) and not name.startswith("_"):
                setattr(made, name, functools.partial(_call_own, file, getattr(made, name), name))
    return made  # type: ignore[no-any-return]


def _call_own(file: Path, method: Callable[..., Any], name: str, *given: Any) -> Any:
    """The result of a method of a user's objective."""
    value = _own(file, lambda: method(*given))
    kind = _RETURNED.get(name)
    problem = "" if kind is None or isinstance(value, kind) else f"a {type(value).__name__}"
    if name == "step_loss" and not problem:
        parts = {"loss": value.loss, **value.metrics}
        wrong = [n for n, part in parts.items() if not isinstance(part, Tensor) or part.dim()]
        problem = f"{', '.join(wrong)} that is not a tensor of shape ()" if wrong else ""
    if problem:
        expected = "a number" if kind is Real else kind.__name__ if kind else ""
        raise ConfigError(
            f"{name} returned {problem}; {expected} is expected",
            where=str(file),
            fix="docs/extending/objective.md has an example",
        )
    return value


def _own(file: Path, work: Callable[[], Any]) -> Any:
    with out_of_memory_explained():
        return guarded(file, work, (StammError, CompileError, MemoryError, torch.OutOfMemoryError))
