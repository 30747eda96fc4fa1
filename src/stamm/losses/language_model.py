"""Next-token loss without the logits of a whole batch. Letters: N tokens, D model, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.losses.linear_cross_entropy import linear_cross_entropy


def nll_per_kept_token(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    keep_N: Tensor,
    kept: float | None = None,
) -> Tensor:
    """Mean negative log-likelihood of the kept tokens, in nats per token, shape ().

    loss = -sum_n keep[n] log softmax(weight @ hidden[n])[target[n]] / kept

    kept     what to divide by; None means sum_n keep[n]. The micro-batches of one step pass the
             step's whole count, so that their losses add up to the loss of the step.

    Shapes   N tokens of the whole batch, all documents together.
    Dtypes   as `linear_cross_entropy`, which also says what is held in memory.
    Edge     a dropped token costs no product, gets exactly zero gradient, and its target may be
             any number. With no kept token the loss is 0 and so is every gradient.
    Checked  tests/unit/losses/test_language_model.py
    """
    keep = keep_N.to(torch.float32)
    scale_N = keep / (keep.sum().clamp(min=1.0) if kept is None else max(kept, 1.0))
    return linear_cross_entropy(hidden_ND, weight_VD, target_N, scale_N, ignore_index=None).loss


@torch.no_grad()
def nll_of_tokens(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """Negative log-likelihood of every target, in nats, float32, shape (N,). Never all logits at once."""
    return linear_cross_entropy(hidden_ND, weight_VD, target_N, ignore_index=None).nats_N
