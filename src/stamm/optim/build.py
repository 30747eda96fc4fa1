"""From a configuration to an optimizer over a model's parameters."""

from __future__ import annotations

import torch
from torch import nn

from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdamW, AdEMAMix
from stamm.optim.groups import parameter_groups


def build_optimizer(
    config: AdamW | AdEMAMix, model: nn.Module, total_steps: int
) -> torch.optim.Optimizer:
    """The optimizer `config` describes, with norms and activation shapes free of weight decay.

    total_steps   length of the run, for warm-ups that last as long as it does
    Raises        ConfigError when layers share a trainable shape, or one is stored in 16 bits
    """
    groups = parameter_groups(model, config.weight_decay, shape_lr_factor=config.shape_lr_factor)
    if isinstance(config, AdEMAMix):
        return AdEMAMixOptimizer(groups, config, total_steps)
    return torch.optim.AdamW(
        groups, betas=(config.beta1, config.beta2), eps=config.eps, foreach=True
    )
