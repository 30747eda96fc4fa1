"""Next-token loss without the logits of a whole batch.

Letters: N tokens of the batch, D model, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 2**20  # a chunk's logits stay in the second-level cache


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and both gradients chunk by chunk in the forward pass: logits are used and forgotten."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        scale_N: Tensor,
        chunk: int,
    ) -> Tensor:
        needs = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        d_hidden_ND = torch.empty_like(hidden_ND) if needs else None
        d_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs else None
        for start in range(0, hidden_ND.shape[0], chunk):
            part = slice(start, start + chunk)
            hidden_CD, target_C, scale_C = hidden_ND[part], target_N[part, None], scale_N[part]
            logits_CV = (hidden_CD @ weight_VD.T).float()
            peak_C = logits_CV.amax(dim=1, keepdim=True)
            correct_C = logits_CV.gather(1, target_C) - peak_C
            exponential_CV = logits_CV.sub_(peak_C).exp_()
            sum_C = exponential_CV.sum(dim=1, keepdim=True)
            total += ((sum_C.log() - correct_C)[:, 0] * scale_C).sum()
            if d_hidden_ND is None or d_weight_VD is None:
                continue
            d_logits_CV = exponential_CV.mul_(scale_C[:, None] / sum_C)
            d_logits_CV.scatter_add_(1, target_C, -scale_C[:, None])
            d_logits_CV = d_logits_CV.to(weight_VD.dtype)
            torch.mm(d_logits_CV, weight_VD, out=d_hidden_ND[part])
            d_weight_VD.addmm_(d_logits_CV.T.float(), hidden_CD.float())
        ctx.save_for_backward(d_hidden_ND, d_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_ND, d_weight_VD = ctx.saved_tensors
        return (
            d_hidden_ND * d_loss.to(d_hidden_ND.dtype),
            (d_weight_VD * d_loss).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


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
    Dtypes   any float in; log-sum-exp, the sum and the gradient of the matrix in float32.
    Edge     a dropped token gets exactly zero gradient, and its target may be any number. With no
             kept token the loss is 0 and so is every gradient.
    Memory   logits of CHUNK_BYTES at a time, in the forward pass only.
    Checked  tests/unit/losses/test_language_model.py
    """
    keep = keep_N.to(torch.float32)
    scale_N = keep / (keep.sum().clamp(min=1.0) if kept is None else max(kept, 1.0))
    target_N = torch.where(keep_N.bool(), target_N, torch.zeros_like(target_N))
    chunk = max(CHUNK_BYTES // (4 * weight_VD.shape[0]), 1)
    apply: Any = _LinearCrossEntropy.apply
    loss: Tensor = apply(hidden_ND, weight_VD, target_N, scale_N, chunk)
    return loss


@torch.no_grad()
def nll_of_tokens(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """Negative log-likelihood of every target, in nats, float32, shape (N,). Never all logits at once."""
    chunk = max(CHUNK_BYTES // (4 * weight_VD.shape[0]), 1)
    parts = []
    for start in range(0, hidden_ND.shape[0], chunk):
        logits_CV = (hidden_ND[start : start + chunk] @ weight_VD.T).float()
        target_C = target_N[start : start + chunk, None]
        parts.append(
            (logits_CV.logsumexp(dim=1, keepdim=True) - logits_CV.gather(1, target_C))[:, 0]
        )
    return torch.cat(parts) if parts else hidden_ND.new_zeros(0, dtype=torch.float32)
