"""Activation checkpointing of feed-forward blocks: what is saved for backward, what is recomputed.

Blocks call their modules, so hooks, sharding and casts act as without a memory policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stamm.activations.module import Activation, GatedActivation
from stamm.models.config import MemoryPolicy, Recompute, SavePost
from stamm.models.experts import Router, weighted_units


def feed_forward(
    x: Tensor,
    projections: Sequence[nn.Module],
    activation: Activation | GatedActivation,
    down: nn.Module,
    memory: MemoryPolicy,
    router: Router | None = None,
    epsilon: float | None = None,
) -> Any:
    """down(f(p(x) for each projection p)), saving for the backward pass as `memory` defines.

    router   of a block with experts: their units are multiplied by its weights, 0 for those that do not act
    epsilon  of `unit_density`, which is then returned beside the block's output; None: the output alone

    All policies give the same bits of result and gradients, and can be differentiated
    twice if the activation can.

    Edge     torch.func transforms raise an error for the hooks of SavePre and Recompute.
    Checked  tests/unit/models/test_ffn_checkpointing.py
    """

    def after(*inputs: Tensor) -> Any:
        units = activation(*inputs[: len(projections)])
        for weights in inputs[len(projections) :]:
            units = weighted_units(units, weights)
        return down(units) if epsilon is None else (down(units), unit_density(units, epsilon))

    first = [*projections] if router is None else [*projections, router]

    def whole(x: Tensor) -> Any:
        return after(*(project(x) for project in first))

    if isinstance(memory, SavePost):
        return whole(x)
    if isinstance(memory, Recompute):
        return _recomputed(whole, x)
    return _recomputed(after, *(project(x) for project in first))


class _UnitDensity(torch.autograd.Function):
    """Saves the units alone, which the last matrix saves, too."""

    @staticmethod
    def forward(ctx: Any, units: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(units)
        ctx.epsilon = epsilon
        return (1 / (1 + epsilon / _wide(units).square())).mean(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (units,) = ctx.saved_tensors
        h, (grad,) = _wide(units), grads
        slope = 2 * ctx.epsilon * h / ((h.square() + ctx.epsilon).square() * h.shape[-1])
        return (grad[..., None] * slope).to(units.dtype), None


def _wide(units: Tensor) -> Tensor:
    return units.to(torch.promote_types(units.dtype, torch.float32))


def unit_density(units: Tensor, epsilon: float) -> Tensor:
    """Mean over the units h of h^2 / (h^2 + epsilon), (...), from (..., C): `Density`.

    Dtypes   float32, of float64 in float64
    Checked  tests/unit/models/test_density.py
    """
    density: Tensor = _UnitDensity.apply(units, epsilon)  # type: ignore[no-untyped-call]
    return density


def _recomputed(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """function(*inputs) with activation checkpointing: only the inputs are saved.

    Recomputation stops when the last matrix has its input: that product is not formed again.
    Nothing here is random, so no random state is saved.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
