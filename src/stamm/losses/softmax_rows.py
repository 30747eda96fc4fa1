"""Softmax cross-entropy of rows of logits as one Triton kernel: read twice, the gradient written in place.

A row is one program. Every sum has a fixed order, so the same logits give the same bits. Imported
only where Triton runs: see `linear_cross_entropy`.

Source   Milakov and Gimelshein 2018 (arXiv 1805.02867) for the sum beside a running maximum
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_BLOCK = 8192  # logits of a row at a time
_WARPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _row(  # type: ignore[no-untyped-def]
    logits, target, scale, nats, log_z, columns, z_loss, WANTED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    inside = tl.arange(0, BLOCK)
    # Read before the sums, at which all warps wait: after them another warp may have overwritten it.
    label = tl.load(target + row)
    correct = tl.load(start + label).to(tl.float32)
    peak = -float("inf")
    total = 0.0
    for first in range(0, columns, BLOCK):
        column = first + inside
        x = tl.load(start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher), axis=0)
        peak = higher
    weight = tl.load(scale + row)
    logarithm = tl.log(total)
    tl.store(nats + row, logarithm - (correct - peak))
    tl.store(log_z + row, logarithm + peak)
    if WANTED:
        factor = weight * (1.0 + 2.0 * z_loss * (logarithm + peak)) / total
        for first in range(0, columns, BLOCK):
            column = first + inside
            known = column < columns
            x = tl.load(start + column, mask=known, other=-float("inf")).to(tl.float32)
            slope = tl.exp(x - peak) * factor
            slope = tl.where(column == label, slope - weight, slope)
            tl.store(start + column, slope, mask=known)


def softmax_rows(
    logits_CV: Tensor, target_C: Tensor, scale_C: Tensor, z_loss: float, *, wanted: bool
) -> tuple[Tensor, Tensor]:
    """Nats and log Z of every row, (C,) in float32; with `wanted`, logits_CV becomes the gradient in them.

    logits_CV   contiguous, bfloat16, float16 or float32; computed in float32
    target_C    within the vocabulary: it is read without a check
    """
    rows, columns = logits_CV.shape
    nats_C, log_z_C = scale_C.new_empty(rows), scale_C.new_empty(rows)
    if rows:
        with torch.cuda.device_of(logits_CV):  # type: ignore[no-untyped-call]
            _row[(rows,)](
                logits_CV, target_C, scale_C, nats_C, log_z_C, columns, z_loss,
                WANTED=wanted, BLOCK=min(_BLOCK, triton.next_power_of_2(columns)), num_warps=_WARPS,
            )  # fmt: skip
    return nats_C, log_z_C
