"""Parameter groups: weight decay, learning-rate factor and optimizer method of each parameter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from stamm.activations.module.shape_parameters import check_not_shared, shape_parameters
from stamm.base.errors import ConfigError
from stamm.optim.config import OptimizerConfig
from stamm.optim.param_group_rules import grouped

_SHORT = (torch.float16, torch.bfloat16)


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, *, allow_shared: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Optimizer groups, as `rules.grouped` makes them, with the model's trainable parameters in them.

    Each has "lr_factor", which `set_learning_rate` uses, "label", "method", and "names" of the parameters.

    allow_shared      activation modules that are meant to share their shape (`check_not_shared`)
    Raises            ConfigError for a rule that matches no parameter, for a shape that two layers
                      share, and for a shape stored in 16 bits: the spacing of bfloat16 near 1 is
                      larger than an optimizer's step, so it would not change
    """
    check_not_shared(model, allow_shared)
    shapes = shape_parameters(model)
    for name, parameter in shapes.items():
        if parameter.dtype in _SHORT:
            raise ConfigError(
                f"the shape parameter {name} is stored as {_dtype_name(parameter)}",
                fix="Keep it in float32: build the activation with dtype=torch.float32",
            )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    learned = {id(p) for p in shapes.values()}
    groups = grouped(
        config,
        {name: tuple(p.shape) for name, p in named.items()},
        {name for name, p in named.items() if id(p) in learned},
    )
    return [
        {
            "params": [named[name] for name in group.sizes],
            "names": list(group.sizes),
            "weight_decay": group.weight_decay,
            "lr_factor": group.lr_factor,
            "label": group.label,
            "method": group.method,
        }
        for group in groups
    ]


def check_float32(named: Iterable[tuple[str, Tensor]]) -> None:
    """Check that weights are stored in float32: there are no separate master weights.

    Raises   ConfigError. A bfloat16 weight loses every update below a 512th of its value, and most
             updates are smaller
    """
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameter {name} is stored as {_dtype_name(parameter)}, and there are no master weights"
                " in float32: small updates would be lost",
                fix='Keep weights in float32; engine.precision="bfloat16" computes in 16 bits',
            )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to `rate` times the group's factor, in place."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_factor", 1.0)


def _dtype_name(parameter: Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")
