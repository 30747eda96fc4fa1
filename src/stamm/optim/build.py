"""From a configuration to an optimizer over a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdamW, AdEMAMix, CustomOptimizer, Muon, OptimizerConfig
from stamm.optim.custom import build_custom
from stamm.optim.groups import check_float32, parameter_groups
from stamm.optim.muon import MuonWithAdamW


@dataclass(frozen=True)
class OptimizerInputs:
    """Inputs of an optimizer, beside its configuration.

    groups        parameter groups (`parameter_groups`) with the tensors that this process updates
    total_steps   length of the run, for warm-ups that last as long as it does
    layouts       by each updated tensor, the model's parameter whose shard it is
    """

    groups: list[dict[str, Any]]
    total_steps: int
    layouts: Mapping[nn.Parameter, nn.Parameter]

    @property
    def sharded(self) -> bool:
        """Whether parameters are divided over several processes."""
        return any(
            isinstance(p, DTensor) and p.device_mesh.size() > 1 for p in self.layouts.values()
        )


def build_optimizer(
    config: OptimizerConfig,
    model: nn.Module,
    total_steps: int,
    piece: Callable[[nn.Parameter], nn.Parameter] = lambda parameter: parameter,
) -> torch.optim.Optimizer:
    """The optimizer that `config` describes; norms and activation shapes have no weight decay.

    total_steps   length of the run, for warm-ups that last as long as it does
    piece         the local shard of each of the model's parameters, which is updated
    Raises        ConfigError when layers share a trainable shape, when a parameter is stored in
                  16 bits, when a rule of `config.groups` matches no parameter, or for a user's
                  optimizer that cannot be built
    """
    groups = parameter_groups(model, config)
    check_float32((name, p) for name, p in model.named_parameters() if p.requires_grad)
    layouts: dict[nn.Parameter, nn.Parameter] = {}
    for group in groups:
        pieces = [piece(parameter) for parameter in group["params"]]
        layouts.update(zip(pieces, group["params"], strict=True))
        group["params"] = pieces
    return BUILDERS[type(config)](config, OptimizerInputs(groups, total_steps, layouts))


def _adamw(config: AdamW, given: OptimizerInputs) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        given.groups, betas=(config.beta1, config.beta2), eps=config.eps, foreach=True
    )


def _ademamix(config: AdEMAMix, given: OptimizerInputs) -> torch.optim.Optimizer:
    return AdEMAMixOptimizer(given.groups, config, given.total_steps)


def _muon(config: Muon, given: OptimizerInputs) -> torch.optim.Optimizer:
    return MuonWithAdamW(given.groups, config, given.layouts)


def _custom(config: CustomOptimizer, given: OptimizerInputs) -> torch.optim.Optimizer:
    return build_custom(config, given.groups, sharded=given.sharded)


# The registry of optimizers: class of the configuration -> what builds it.
BUILDERS: dict[type[OptimizerConfig], Callable[[Any, OptimizerInputs], torch.optim.Optimizer]] = {
    AdamW: _adamw,
    AdEMAMix: _ademamix,
    Muon: _muon,
    CustomOptimizer: _custom,
}


def implementation_of(optimizer: torch.optim.Optimizer) -> str:
    """Implementation of the update, recorded in a run's timing: "AdEMAMix: fused".

    Where `implementation="auto"` chose foreach, the reason follows in brackets.
    """
    if isinstance(optimizer, AdEMAMixOptimizer):
        because = f" ({optimizer.why})" if optimizer.why else ""
        return f"AdEMAMix: {optimizer.form}{because}"
    if isinstance(optimizer, MuonWithAdamW):
        return "Muon: torch.optim.Muon, AdamW: foreach"
    if type(optimizer) is torch.optim.AdamW:
        return "AdamW: foreach"
    return type(optimizer).__qualname__
