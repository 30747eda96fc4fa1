"""What a feed-forward block keeps for its backward pass, and what it computes once more instead.

Blocks are run through their modules, so hooks, sharding and casts act as they do without a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stamm.activations.module import Activation, GatedActivation
from stamm.activations.spec import Spec
from stamm.models.config import FewBit, MemoryPolicy, Recompute, SavePost, SavePre
from stamm.models.few_bit import SlopeCode, coded, slope_code

Kept = SavePost | SavePre | Recompute | SlopeCode


def kept(memory: MemoryPolicy, spec: Spec) -> Kept:
    """A memory policy ready for an activation: FewBit becomes the code of its f'."""
    return slope_code(spec, memory.bits) if isinstance(memory, FewBit) else memory


def feed_forward(
    x: Tensor,
    projections: Sequence[nn.Module],
    activation: Activation | GatedActivation,
    down: nn.Module,
    keep: Kept,
) -> Tensor:
    """down(f(p(x) for each projection p)), with what `keep` says kept for the backward pass.

    All but FewBit give the same bits, of the result and of every gradient, and can be
    differentiated twice where the activation can.

    Edge     torch.func transforms refuse the hooks that SavePre and Recompute need, with an error.
    Checked  tests/unit/models/test_ffn_checkpointing.py
    """

    def after(*inputs: Tensor) -> Tensor:
        y: Tensor = down(activation(*inputs))
        return y

    def whole(x: Tensor) -> Tensor:
        return after(*(project(x) for project in projections))

    if isinstance(keep, SavePost):
        return whole(x)
    if isinstance(keep, Recompute):
        return _recomputed(whole, x)
    inputs = [project(x) for project in projections]
    if isinstance(keep, SlopeCode):
        y: Tensor = down(coded(keep, activation, *inputs))
        return y
    return _recomputed(after, *inputs)


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs), of which the inputs alone are kept.

    The second computation stops as soon as the last matrix has its input: that product is not
    formed again. Nothing here is random, so no state of a generator is kept.
    """
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
