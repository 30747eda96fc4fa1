"""The bijections of shape parameters on tensors: stored numbers to effective values, with gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.spec.parameters import Absolute, Between, Exp, Identity, Parameter, Softplus

_TORCH_LINEAR, _LINEAR = 20.0, 40.0  # log(1 + exp(40)) is 40 in float64; at 20 it is 2e-9 more


def effective_tensor(
    parameter: Parameter, stored: Tensor, bound: Tensor | float, *, exact: bool = False
) -> Tensor:
    """The effective values of a trainable parameter, differentiable, shaped and typed as `stored`.

    bound   the effective value of the lower bound; ignored for a parameter without one
    exact   all digits that float64 has; otherwise softplus is the identity from 20 on, as in torch
    """
    match parameter.bijection:
        case Softplus():
            linear = _LINEAR if exact else _TORCH_LINEAR
            return _above(F.softplus(stored, threshold=linear), bound)
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
