"""Shape parameters of activations in any model, and their groups for an optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stamm.activations.module.activation import ActivationModule
from stamm.base.errors import ConfigError
from stamm.optim.config import AdamW
from stamm.optim.param_group_rules import grouped
from stamm.swap.saved_class import is_generated


def trained_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the shape parameters of an activation: stamm's module, or that of a saved model's code."""
    if isinstance(module, ActivationModule):
        return tuple(p.name for p in module.spec.trainable)
    names: tuple[str, ...] = getattr(type(module), "TRAINED", ()) if is_generated(module) else ()
    return names


def shape_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every stored shape parameter, under its name in the model; one that is shared, once."""
    parameters: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        for parameter_name in trained_names(module):
            parameter = module.get_parameter(parameter_name)
            path = f"{name}.{parameter_name}" if name else parameter_name
            parameters.setdefault(id(parameter), (path, parameter))
    return dict(parameters.values())


def shape_values(model: nn.Module) -> dict[str, Tensor]:
    """The effective values of the shape parameters that train, on the CPU in float64; of all, where none does.

    Edge   parameters that are sharded over processes are gathered, so every process must call this
    """
    values: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            names = trained_names(module)
            if not names:
                continue
            effective = [v for v in _effective(module) if isinstance(v, Tensor)]
            for parameter_name, value in zip(names, effective, strict=True):
                whole = value.full_tensor() if hasattr(value, "full_tensor") else value
                path = f"{name}.{parameter_name}" if name else parameter_name
                values[path] = whole.detach().cpu().double()
    trained = {name for name, p in shape_parameters(model).items() if p.requires_grad}
    return {name: value for name, value in values.items() if name in trained or not trained}


def _effective(module: Any) -> Any:
    return module._effective()


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters for an optimizer of torch: matrices decay; vectors and shape parameters do not.

        optimizer = torch.optim.AdamW(stamm.parameter_groups(model, weight_decay=0.1), lr=1e-4)

    Each has "params", "weight_decay" and "label": "matrices", "vectors" (norms, biases) or "shapes".
    Weight decay pulls a stored shape to 0, which is not a neutral value: softplus of 0 is 0.69.

    Raises   ConfigError for a negative weight decay
    Checked  tests/unit/swap/test_weight_decay.py
    """
    if not weight_decay >= 0:
        raise ConfigError(f"weight_decay = {weight_decay} is negative", fix="Use 0 or more")
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    shapes = {id(p) for p in shape_parameters(model).values()}
    groups = grouped(
        AdamW(weight_decay=weight_decay),
        {name: tuple(p.shape) for name, p in named.items()},
        {name for name, p in named.items() if id(p) in shapes},
    )
    return [
        {
            "params": [named[name] for name in group.sizes],
            "weight_decay": group.weight_decay,
            "label": group.label,
        }
        for group in groups
    ]
