"""Activation checkpointing of feed-forward blocks: what is saved for backward, what is recomputed.

Blocks call their modules, so hooks, sharding and casts act as without a memory policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
) -> Tensor:
    """down(f(p(x) for each projection p)), saving for the backward pass as `memory` defines.

    router   of a block with experts: their units are multiplied by its weights, 0 for those that do not act

    All policies give the same bits of result and gradients, and can be differentiated
    twice if the activation can.

    Edge     torch.func transforms raise an error for the hooks of SavePre and Recompute.
    Checked  tests/unit/models/test_ffn_checkpointing.py
    """

    def after(*inputs: Tensor) -> Tensor:
        units = activation(*inputs[: len(projections)])
        for weights in inputs[len(projections) :]:
            units = weighted_units(units, weights)
        y: Tensor = down(units)
        return y

    first = [*projections] if router is None else [*projections, router]

    def whole(x: Tensor) -> Tensor:
        return after(*(project(x) for project in first))

    if isinstance(memory, SavePost):
        return whole(x)
    if isinstance(memory, Recompute):
        return _recomputed(whole, x)
    return _recomputed(after, *(project(x) for project in first))


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) with activation checkpointing: only the inputs are saved.

    Recomputation stops when the last matrix has its input: that product is not formed again.
    Nothing here is random, so no random state is saved.
    """
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
