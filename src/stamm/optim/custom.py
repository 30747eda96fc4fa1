"""A user's optimizer: load it, build it over parameter groups, measure its state (docs/extending/optimizer.md)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from stamm.base.errors import ConfigError
from stamm.base.user_code import guarded, load_reference, source_file
from stamm.optim.config import CustomOptimizer

_SIDE = 64  # of the matrix that the state is measured on


@runtime_checkable
class OptimizerFactory(Protocol):
    """A subclass of torch.optim.Optimizer, or a function that returns an optimizer.

    groups    parameter groups, one dict each: "params", "names" of them, "weight_decay" (0 for norms,
              biases and activation shapes), "lr" (set before every step), "lr_factor", "label"
    options   the keyword arguments of the configuration

    An attribute `elementwise = True` states that the update of an element depends only on the
    gradient and state of that element: training over several processes requires it, since each
    process updates its own shard of a matrix.
    """

    def __call__(self, groups: list[dict[str, Any]], /, **options: Any) -> torch.optim.Optimizer:
        """The optimizer over these groups."""


def load_optimizer(config: CustomOptimizer) -> OptimizerFactory:
    """The class or function that `config.reference` names.

    Raises   ConfigError when it cannot be loaded or called
    """
    factory: Any = load_reference(config.reference, None, "an optimizer")
    if not isinstance(factory, OptimizerFactory):
        raise ConfigError(
            f"optimizer.reference = {config.reference!r} is not a class or a function",
            fix="Name a subclass of torch.optim.Optimizer",
        )
    return factory


def optimizer_file(config: CustomOptimizer) -> Path:
    """The source file of a user's optimizer, whose hash is recorded with the run."""
    return source_file(config.reference, load_optimizer(config))


def build_custom(
    config: CustomOptimizer, groups: list[dict[str, Any]], *, sharded: bool
) -> torch.optim.Optimizer:
    """The user's optimizer over `groups`.

    sharded   whether the parameters are shards of larger ones
    Raises    ConfigError when it cannot be loaded, raises, returns something else, or is not
              elementwise and the parameters are sharded
    """
    make = load_optimizer(config)
    if sharded and getattr(make, "elementwise", False) is not True:
        raise ConfigError(
            f"optimizer {config.reference} does not declare elementwise = True, and each process "
            "updates its own shard of a matrix",
            fix="Declare it in the class if the update of an element depends on no other element, or "
            "train in one process",
        )
    given = [{**group, "lr": 0.0} for group in groups]
    build = functools.partial(make, given, **config.keywords())
    optimizer = guarded(optimizer_file(config), build)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer {config.reference} returns {type(optimizer).__name__}, which is not a "
            "torch.optim.Optimizer",
            fix="Subclass torch.optim.Optimizer, or return one",
        )
    _check_groups(config, groups, optimizer)
    return optimizer


def measured_state(config: CustomOptimizer) -> float:
    """Numbers of 32 bits that the optimizer keeps per parameter, measured on one step of a small matrix."""
    weight = nn.Parameter(torch.zeros(_SIDE, _SIDE))
    group = {"params": [weight], "names": ["layers.0.weight"], "weight_decay": config.weight_decay}
    group |= {"lr_factor": 1.0, "label": "matrices", "method": "custom"}
    optimizer = build_custom(config, [group], sharded=False)
    weight.grad = torch.ones_like(weight)
    guarded(optimizer_file(config), optimizer.step)
    kept = [
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.numel() > 1
    ]
    return sum(kept) / (4 * _SIDE**2)


def _check_groups(
    config: CustomOptimizer, groups: list[dict[str, Any]], optimizer: torch.optim.Optimizer
) -> None:
    asked = [id(p) for group in groups for p in group["params"]]
    given = getattr(optimizer, "param_groups", [])  # without super().__init__ there are none
    held = [id(p) for group in given for p in group["params"]]
    if sorted(asked) != sorted(held) or not all("lr" in g for g in given):
        raise ConfigError(
            f"optimizer {config.reference} does not hold the parameters that it was given: "
            f"{len(held)} of {len(asked)}",
            fix="Pass the groups to super().__init__(groups, defaults) unchanged",
        )
