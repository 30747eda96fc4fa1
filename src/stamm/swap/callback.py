"""A callback that keeps shape parameters out of weight decay, logs them, and reports those that run away.

It also lets a model that was loaded from a folder train with stamm's fused kernels.

It has the events of transformers' Trainer (and so of TRL's trainers) and those of Lightning, and needs
none of them to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.swap.saved_class import train_fused
from stamm.swap.shapes import shape_parameters, shape_values

_PREFIX = "activation"


class StammCallback:
    """Callback of a trainer: `Trainer(..., callbacks=[stamm.StammCallback()])`.

    During each step of the optimizer the shape parameters are in a group without weight decay; between
    steps its groups are the trainer's own, so that checkpoints, schedulers and a resumed run see what they
    expect.

    limit     a shape parameter beyond `limit` (1 + |its value at the start|), or one that is not finite, is
              reported, once
    Raises    ConfigError at the start of training for a model without shape parameters
    Checked   tests/unit/swap/test_trainer.py, tests/unit/swap/test_other_trainers.py
    """

    def __init__(self, limit: float = 10.0) -> None:
        if not limit > 0:
            raise ConfigError(f"limit = {limit} is not positive", fix="Leave it out: 10 is usual")
        self.limit = limit
        self._start: dict[str, Tensor] = {}
        self._reported: set[str] = set()
        self._handles: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any = None, **_: Any
    ) -> None:
        """Trainer: the optimizer is there, with the state of the checkpoint that is resumed."""
        self._begin(model, [optimizer])

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        logs: dict[str, Any] | None = None,
        model: Any,
        **_: Any,
    ) -> None:
        """Trainer: a summary goes to the log, and each value into the history of the state."""
        values = shape_values(model)
        self._check(values, warn=state.is_world_process_zero)
        if logs is not None and "loss" in logs:
            logs.update(summary(values))
            if state.log_history:
                state.log_history[-1].update(summary(values) | _means(values))

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Lightning: the optimizers are there."""
        self._begin(module, trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        """Lightning: a summary goes to its loggers, as often as they log."""
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            values = shape_values(module)
            self._check(values, warn=trainer.is_global_zero)
            module.log_dict(summary(values), rank_zero_only=True)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Both: the optimizer is given back as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def state_key(self) -> str:
        """Lightning's name of its state, of which there is none."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep in a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The other events of both libraries, which change nothing."""
        if name.startswith("on_") or name in ("setup", "teardown"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _begin(self, model: nn.Module, optimizers: list[Any]) -> None:
        shapes = shape_parameters(model)
        if not shapes:
            raise ConfigError(
                f"{type(model).__name__} has no shape parameters",
                fix='Put an activation in first: stamm.swap(model, "xielu")',
            )
        self.on_train_end()
        self._start = shape_values(model)
        train_fused(model)
        if not any(p.requires_grad for p in shapes.values()):
            Console().log(
                f"the {len(shapes)} shape parameters are frozen, {next(iter(shapes))} first; with LoRA,"
                " name their modules in modules_to_save."
            )
        held = {
            id(p) for o in optimizers for g in getattr(o, "param_groups", ()) for p in g["params"]
        }
        without = [name for name, p in shapes.items() if p.requires_grad and id(p) not in held]
        if held and without:
            Console().log(
                f"warning: the optimizer does not have the shape parameter {without[0]}, so it stays as it is."
                " Make the optimizer after the swap."
            )
        for optimizer in optimizers:
            self._handles += keep_from_decay(optimizer, list(shapes.values()))

    def _check(self, values: Mapping[str, Tensor], *, warn: bool) -> None:
        for name, value in values.items():
            start = self._start.get(name, torch.zeros(1, dtype=torch.float64))
            far = ~(value.abs() <= self.limit * (1 + start.abs()))
            if warn and bool(far.any()) and name not in self._reported:
                self._reported.add(name)
                Console().log(
                    f"warning: the shape parameter {name} runs away: {float(value[far][0]):.4g},"
                    f" from {float(start.mean()):.4g} at the start. Lower the learning rate."
                )


def keep_from_decay(optimizer: Any, parameters: list[nn.Parameter]) -> list[Any]:
    """Hooks by which steps of the optimizer leave `parameters` out of weight decay; they can be removed.

    A step sees them in groups of their own, with the settings of theirs and a weight decay of 0.

    Raises   ConfigError for what has no hooks of torch's optimizers
    """
    while not isinstance(optimizer, Optimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):  # accelerate's wrapper
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__} is not an optimizer of torch, so weight decay cannot be kept"
            " from the shape parameters",
            fix="Train with weight_decay=0",
        )
    shapes = {id(p) for p in parameters}
    whole: dict[int, list[Any]] = {}

    def restore(optimizer: Any, *_: Any) -> None:
        kept = [g for g in optimizer.param_groups if "_without_decay" not in g]
        optimizer.param_groups[:] = kept
        for index, params in whole.items():
            kept[index]["params"] = params
        whole.clear()

    def split(optimizer: Any, *_: Any) -> None:
        restore(optimizer)  # a step that failed has not ended
        for index, group in enumerate(list(optimizer.param_groups)):
            ours = [p for p in group["params"] if id(p) in shapes]
            if ours and group.get("weight_decay"):
                whole[index] = group["params"]
                free = {**group, "params": ours, "weight_decay": 0.0, "_without_decay": True}
                group["params"] = [p for p in group["params"] if id(p) not in shapes]
                optimizer.param_groups.append(free)

    return [
        optimizer.register_step_pre_hook(split),
        optimizer.register_step_post_hook(restore),
    ]


def summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Least, mean and largest value of each parameter over the model, by `activation/NAME_min` and so on."""
    by_name: dict[str, list[Tensor]] = {}
    for path, value in values.items():
        by_name.setdefault(path.rpartition(".")[2], []).append(value.reshape(-1))
    result = {}
    for name, parts in by_name.items():
        joined = torch.cat(parts)
        for what, number in (("min", joined.min()), ("mean", joined.mean()), ("max", joined.max())):
            result[f"{_PREFIX}/{name}_{what}"] = float(number)
    return result


def _means(values: Mapping[str, Tensor]) -> dict[str, float]:
    return {f"{_PREFIX}/{path}": float(value.mean()) for path, value in values.items()}


def _nothing(*_: Any, **__: Any) -> None:
    """An event that needs nothing done."""
