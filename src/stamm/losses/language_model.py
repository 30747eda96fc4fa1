"""Next-token loss without the logits of a whole batch. Letters: N tokens, D model, V vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stamm.losses.linear_cross_entropy import linear_cross_entropy


class LossOutput(NamedTuple):
    """Loss of a step and its two parts, each of shape ().

    loss         nll + z, with its gradient
    nll          negative log-likelihood in nats per kept token, the same quantity with and without
                 z-loss: what runs are compared by; no gradient
    z            z_loss times the mean of log(Z)^2 over the kept tokens; 0 without z-loss; no gradient
    density      mean of h^2 / (h^2 + epsilon), not weighted, where `Decoder.losses` is given a `Density`;
                 its weighted value is part of `loss`; no gradient
    """

    loss: Tensor
    nll: Tensor
    z: Tensor
    density: Tensor | None = None


def masked_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    keep_N: Tensor,
    kept: float | None = None,
    z_loss: float = 0.0,
) -> LossOutput:
    """Mean loss of the kept tokens, and its parts.

    nll  = -sum_n keep[n] log softmax(weight @ hidden[n])[target[n]] / kept
    z    = z_loss sum_n keep[n] log(Z[n])^2 / kept,   Z[n] = sum_v exp((weight @ hidden[n])[v])

    kept     what to divide by; None means sum_n keep[n]. The micro-batches of one step pass the
             step's whole count, so that their losses, and each part, add up to those of the step.
    z_loss   pulls log Z to 0, so that logits do not drift; 1e-4 in PaLM (arXiv 2204.02311), 0 in
             Apertus

    Shapes   N tokens of the whole batch, all documents together.
    Dtypes   as `linear_cross_entropy`; memory, too.
    Edge     a dropped token costs no product, gets exactly zero gradient, pulls no Z, and its target
             may be any number. With no kept token all three are 0 and so is every gradient.
             Without z-loss `nll` has the bits of `loss`.
    Checked  tests/unit/losses/test_language_model.py
    """
    keep = keep_N.to(torch.float32)
    scale_N = keep / (keep.sum().clamp(min=1.0) if kept is None else max(kept, 1.0))
    loss, nats_N, log_z_N = linear_cross_entropy(
        hidden_ND, weight_VD, target_N, scale_N, ignore_index=None, z_loss=z_loss
    )
    if z_loss == 0.0:
        return LossOutput(loss, loss.detach(), loss.new_zeros(()))
    scale_N = scale_N.to(nats_N.dtype)
    return LossOutput(loss, (scale_N * nats_N).sum(), z_loss * (scale_N * log_z_N**2).sum())


def nll_per_kept_token(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    keep_N: Tensor,
    kept: float | None = None,
) -> Tensor:
    """Mean negative log-likelihood of the kept tokens, in nats per token, shape (): `masked_cross_entropy`
    without z-loss."""
    return masked_cross_entropy(hidden_ND, weight_VD, target_N, keep_N, kept).loss


@torch.no_grad()
def nll_of_tokens(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """Negative log-likelihood of every target, in nats, float32, shape (N,). Never all logits at once."""
    return linear_cross_entropy(hidden_ND, weight_VD, target_N, ignore_index=None).nats_N
