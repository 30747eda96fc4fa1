"""The bijections of shape parameters on tensors: stored numbers to effective values, with gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.parameters import Absolute, Between, Exp, Identity, Parameter, Softplus


def effective_tensor(parameter: Parameter, stored: Tensor, bound: Tensor | float) -> Tensor:
    """The effective values of a trainable parameter, differentiable, with the shape of `stored`.

    bound   the effective value of what bounds the parameter from below; ignored where nothing does
    """
    match parameter.bijection:
        case Softplus():
            return _above(F.softplus(stored), bound)
        case Exp():
            return _above(torch.exp(stored), bound)
        case Absolute():
            lower = torch.abs(bound) if isinstance(bound, Tensor) else abs(bound)
            return _above(torch.abs(stored), lower)
        case Between(low=low, high=high):
            return low + (high - low) * torch.sigmoid(stored)
        case Identity():
            return stored
    raise TypeError(f"{parameter.name} is fixed: it has no stored value")


def _above(positive: Tensor, bound: Tensor | float) -> Tensor:
    """bound + positive; a bound of 0 costs no operation."""
    return positive if isinstance(bound, float) and bound == 0.0 else bound + positive
