"""One step of AdEMAMix on numbers and on lists of tensors.

fast   <- b1 fast + (1 - b1) g       slow <- slow + (1 - b3) (g - slow)      square <- b2 square + (1 - b2) g^2
p      <- p - lr [ (fast / (1 - b1^t) + alpha slow) / (sqrt(square) / sqrt(1 - b2^t) + eps) + wd p ]

Only sums, differences, products, quotients and square roots, each rounded to the nearest float32 by
itself, in the order written: IEEE 754 leaves no choice, so every machine, vector width and
implementation gives the same bits. (The few numbers of a step come from C's pow and log in float64,
and are rounded to float32.) The slow average is written as a step towards g since b3 near 1
has few digits left in float32: b3 slow + (1 - b3) g would be off by 3e-4 of slow at b3 = 0.9999.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stamm.optim.config import AdEMAMix


class Numbers(NamedTuple):
    """Scalar factors of one step, each rounded to float32."""

    keep_fast: float
    take_fast: float
    take_slow: float
    keep_square: float
    take_square: float
    widen_fast: float
    widen_root: float
    alpha: float
    eps: float
    decay: float
    rate: float


def numbers_at(config: AdEMAMix, step: int, total_steps: int, rate: float, decay: float) -> Numbers:
    """The numbers of the step counted from 1, with learning rate `rate` and weight decay `decay`."""
    exact = Numbers(
        keep_fast=config.beta1,
        take_fast=1 - config.beta1,
        take_slow=1 - config.beta3_at(step, total_steps),
        keep_square=config.beta2,
        take_square=1 - config.beta2,
        widen_fast=1 / (1 - config.beta1**step),
        widen_root=(1 - config.beta2**step) ** -0.5,
        alpha=config.alpha_at(step, total_steps),
        eps=config.eps,
        decay=decay,
        rate=rate,
    )
    return Numbers(*torch.tensor(exact, dtype=torch.float32).tolist())


def formula(held: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """New p, fast, slow and square from p, g, fast, slow and square: what kernels are made from.

    Edge     torch.sqrt denotes the root rounded to nearest, unlike torch's own on CPUs (`_root`)
    """
    p, g, fast, slow, square = held
    n = Numbers(*numbers)
    fast = fast * n.keep_fast + g * n.take_fast
    slow = slow + (g - slow) * n.take_slow
    square = square * n.keep_square + g * g * n.take_square
    below = torch.sqrt(square) * n.widen_root + n.eps
    change = (slow * n.alpha + fast * n.widen_fast) / below + p * n.decay
    return p - change * n.rate, fast, slow, square


def update_lists(held: Iterable[Sequence[Tensor]], numbers: Numbers) -> None:
    """`formula` on each (p, g, fast, slow, square), in place, by torch's functions over lists.

    Memory   temporarily twice that of the parameters
    Checked  tests/unit/optim/test_fused_update.py (the bits of `formula`)
    """
    n = numbers
    parameters, gradients, fast, slow, square = map(list, zip(*held, strict=True))
    other = list(torch._foreach_mul(gradients, n.take_fast))
    torch._foreach_mul_(fast, n.keep_fast)
    torch._foreach_add_(fast, other)
    other = list(torch._foreach_sub(gradients, slow))
    torch._foreach_mul_(other, n.take_slow)
    torch._foreach_add_(slow, other)
    other = list(torch._foreach_mul(gradients, gradients))
    torch._foreach_mul_(other, n.take_square)
    torch._foreach_mul_(square, n.keep_square)
    torch._foreach_add_(square, other)
    change = list(torch._foreach_mul(slow, n.alpha))
    other = list(torch._foreach_mul(fast, n.widen_fast))
    torch._foreach_add_(change, other)
    other = [_root(t) for t in square]
    torch._foreach_mul_(other, n.widen_root)
    torch._foreach_add_(other, n.eps)
    torch._foreach_div_(change, other)
    other = list(torch._foreach_mul(parameters, n.decay))
    torch._foreach_add_(change, other)
    torch._foreach_mul_(change, n.rate)
    torch._foreach_sub_(parameters, change)


def _root(tensor: Tensor) -> Tensor:
    """The square root, rounded to the nearest.

    On CPUs torch takes MKL's root of float32, which is the neighbour of the nearest for one number
    in 150 (2.13, AVX-512). The root of a float32 is never within 2^-50 of the middle of two, and
    float64's is off by 2^-52 at most, so rounding it is correct.
    """
    return tensor.double().sqrt_().float()
