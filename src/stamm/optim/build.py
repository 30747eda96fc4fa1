"""From a configuration to an optimizer over a model's parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdEMAMix, Muon, OptimizerConfig
from stamm.optim.groups import parameter_groups, refuse_narrow
from stamm.optim.muon import MuonWithAdamW


def build_optimizer(
    config: OptimizerConfig,
    model: nn.Module,
    total_steps: int,
    piece: Callable[[nn.Parameter], nn.Parameter] = lambda parameter: parameter,
) -> torch.optim.Optimizer:
    """The optimizer `config` describes, with norms and activation shapes free of weight decay.

    total_steps   length of the run, for warm-ups that last as long as it does
    piece         what is changed in the place of each of the model's parameters
    Raises        ConfigError when layers share a trainable shape, when a parameter is stored in
                  16 bits, or when a rule of `config.groups` decides about no parameter
    """
    groups = parameter_groups(model, config)
    refuse_narrow(model.named_parameters())
    layouts: dict[nn.Parameter, nn.Parameter] = {}
    for group in groups:
        pieces = [piece(parameter) for parameter in group["params"]]
        layouts.update(zip(pieces, group["params"], strict=True))
        group["params"] = pieces
    if isinstance(config, AdEMAMix):
        return AdEMAMixOptimizer(groups, config, total_steps)
    if isinstance(config, Muon):
        return MuonWithAdamW(groups, config, layouts)
    return torch.optim.AdamW(
        groups, betas=(config.beta1, config.beta2), eps=config.eps, foreach=True
    )


def implementation_of(optimizer: torch.optim.Optimizer) -> str:
    """How the updates are computed here, for a run's manifest: "AdEMAMix: fused".

    Where `implementation="auto"` came to foreach, the reason follows in brackets.
    """
    if isinstance(optimizer, AdEMAMixOptimizer):
        because = f" ({optimizer.why})" if optimizer.why else ""
        return f"AdEMAMix: {optimizer.form}{because}"
    if isinstance(optimizer, MuonWithAdamW):
        return "Muon: torch.optim.Muon, AdamW: foreach"
    return f"{type(optimizer).__name__}: foreach"
