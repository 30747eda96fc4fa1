"""Which parameters decay, by name, and how fast trainable shapes learn."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn

from stamm.activations.shapes import refuse_shared, shape_parameters
from stamm.base.errors import ConfigError

NO_DECAY = (r"norm\.weight$", r"layernorm\.weight$", r"\.act_fn\.")
_SHORT = (torch.float16, torch.bfloat16)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    no_decay: Iterable[str] = (),
    *,
    shape_lr_factor: float = 1.0,
    allow_shared: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Optimizer groups: everything decays except norms, activation shapes and `no_decay`.

    The groups are: what decays, what does not, and the trainable shapes of activations, which
    are left out where the model has none. Each carries "lr_factor"; `set_learning_rate` uses it.

    no_decay          further regular expressions, searched in parameter names
    shape_lr_factor   learning rate of the shapes, as a multiple of everyone else's
    allow_shared      activation modules that are meant to share their shape (`refuse_shared`)
    Edge              embeddings and the output matrix decay, as in Apertus
    Raises            ConfigError for an expression in `no_decay` that matches no parameter, for a
                      shape that two layers share, and for a shape stored in 16 bits: the spacing
                      of bfloat16 near 1 is larger than an optimizer's step, so it would not move
    """
    refuse_shared(model, allow_shared)
    shapes = shape_parameters(model)
    for name, parameter in shapes.items():
        if parameter.dtype in _SHORT:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"the shape parameter {name} is stored as {dtype}",
                fix="Keep it in float32: build the activation with dtype=torch.float32",
            )
    named = [(name, parameter) for name, parameter in model.named_parameters()]
    further = tuple(no_decay)
    for pattern in further:
        if not any(re.search(pattern, name) for name, _ in named):
            raise ConfigError(
                f"no_decay pattern {pattern!r} matches no parameter", fix="See `stamm show RECIPE`"
            )
    patterns = [re.compile(pattern) for pattern in (*NO_DECAY, *further)]
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in named:
        if any(parameter is shape for shape in shapes.values()):
            continue
        free = parameter.dim() < 2 or any(pattern.search(name) for pattern in patterns)
        (kept if free else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay, "lr_factor": 1.0},
        {"params": kept, "weight_decay": 0.0, "lr_factor": 1.0},
    ]
    if shapes:
        learned = {"params": list(shapes.values()), "weight_decay": 0.0}
        groups.append({**learned, "lr_factor": shape_lr_factor})
    return groups


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of the optimizer `rate` times the group's own factor, in place."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_factor", 1.0)
