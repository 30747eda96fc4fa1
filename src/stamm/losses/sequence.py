"""Log-probabilities of whole completions, differentiable, without the logits of a whole batch.

Every preference loss (QRPO, DPO, SimPO, REBEL, KTO) is a function of these sums. The forward pass
computes them chunk by chunk and keeps no logits; the backward pass computes each chunk again with
the weight that its completion has in the loss.

Letters: N tokens of the batch, B completions, D model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stamm.base.errors import ConfigError
from stamm.losses.linear_cross_entropy import linear_cross_entropy


def sequence_log_probs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    completion_N: Tensor,
    completions: int,
) -> Tensor:
    """Sum of the log-probabilities of each completion's tokens, in nats, shape (B,).

    logp[b] = sum over n with completion[n] = b of log softmax(weight @ hidden[n])[target[n]]

    hidden_ND      last hidden states, (N, D), the state that predicts target n in row n
    weight_VD      output matrix, (V, D)
    target_N       token ids, (N,)
    completion_N   int64, (N,): the completion that token n belongs to, 0 to B-1; -1 for tokens that
                   count for none: prompts, padding, tool outputs
    completions    B

    Dtypes   log-probabilities of tokens in float32 (float64 for float64), their sums in float64: a
             sum in bfloat16 is wrong by a nat at 500 tokens.
    Edge     a completion without tokens has log-probability 0 and no gradient; B may be 0.
    Memory   as `linear_cross_entropy`; the logits are computed twice when gradients are needed.
    Raises   ConfigError for a completion number outside -1 to B-1; what `linear_cross_entropy` raises
    Checked  tests/unit/losses/test_sequence.py
    """
    if completion_N.shape != target_N.shape or completion_N.dtype != torch.int64:
        raise ConfigError(
            f"completion numbers have shape {tuple(completion_N.shape)} and dtype "
            f"{completion_N.dtype}, targets have shape {tuple(target_N.shape)}",
            fix="Pass one int64 number per target",
        )
    if completion_N.numel() and completion_N.device.type == "cpu":
        low, high = int(completion_N.min()), int(completion_N.max())
        if low < -1 or high >= completions:
            raise ConfigError(
                f"completion numbers reach from {low} to {high}, and there are {completions}",
                fix="Number completions 0 to B-1, and tokens that count for none -1",
            )
    log_probs: Tensor = _SequenceLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, target_N, completion_N, completions
    )
    return log_probs


class _SequenceLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        completion_N: Tensor,
        completions: int,
    ) -> Tensor:
        counted_N = completion_N >= 0
        with torch.no_grad():
            scale_N = counted_N.to(torch.promote_types(weight_VD.dtype, torch.float32))
            nats_N = linear_cross_entropy(
                hidden_ND, weight_VD, target_N, scale_N, ignore_index=None
            ).nats_N
        ctx.save_for_backward(hidden_ND, weight_VD, target_N, completion_N)
        sums_B = torch.zeros(completions, dtype=torch.float64, device=hidden_ND.device)
        index = completion_N[counted_N]
        return sums_B.index_add_(0, index, nats_N[counted_N].double()).neg_()

    @staticmethod
    def backward(ctx: Any, *d_sums: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, target_N, completion_N = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        d_sums_B = functional.pad(
            d_sums[0], (0, 1)
        )  # an element to index where there is no completion
        slope_N = -d_sums_B[completion_N.clamp(min=0)] * (completion_N >= 0)
        with torch.enable_grad():
            hidden = hidden_ND.detach().requires_grad_(wanted[0])
            weight = weight_VD.detach().requires_grad_(wanted[1])
            loss = linear_cross_entropy(
                hidden, weight, target_N, slope_N.to(wide), ignore_index=None
            ).loss
        needed = [x for x, want in ((hidden, wanted[0]), (weight, wanted[1])) if want]
        gradients = iter(torch.autograd.grad(loss, needed))
        return (
            next(gradients) if wanted[0] else None,
            next(gradients) if wanted[1] else None,
            None,
            None,
            None,
        )
