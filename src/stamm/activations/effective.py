"""The bijections of shape parameters on tensors: stored numbers to effective values, with gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def effective_tensors(
    parameters: Sequence[Parameter],
    stored: Mapping[str, Tensor],
    *,
    constants: Mapping[str, Tensor] | None = None,
) -> list[Tensor]:
    """The effective values of the trainable ones of a spec's parameters, differentiable.

    stored     the stored numbers of each trainable parameter, by its name
    constants  the fixed parameters, for another library's order of evaluation
    Dtypes     float64, from the stored numbers without a rounding in between (float32 on a device
               without float64): float32 would lose the difference of alpha_n and beta. With
               `constants` the stored dtype
    """
    held = {p.name: p for p in parameters}

    def effective(parameter: Parameter) -> Tensor:
        bound: Tensor | float = 0.0
        name = parameter.above_name
        if name is not None:
            fixed = {name: held[name].initial} if constants is None else constants
            bound = effective(held[name]) if held[name].trainable else fixed[name]
        elif parameter.above is not None:
            bound = float(parameter.above)
        numbers = stored[parameter.name]
        if constants is not None:
            return effective_tensor(parameter, numbers, bound)
        wide = numbers if numbers.device.type == "mps" else numbers.double()
        return effective_tensor(parameter, wide, bound, exact=True)

    return [effective(p) for p in parameters if p.trainable]


def _above(positive: Tensor, bound: Tensor | float) -> Tensor:
    """bound + positive; a bound of 0 costs no operation."""
    return positive if isinstance(bound, float) and bound == 0.0 else bound + positive
