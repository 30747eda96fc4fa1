"""The language-model loss on the device, against all logits at once in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.losses import linear_cross_entropy as module
from stamm.losses.linear_cross_entropy import linear_cross_entropy

SHAPE = (700, 1531, 192)  # tokens, vocabulary, width
CHUNK = 256
Z_LOSS = 1e-3
# Of the error that torch's own path makes in the same dtype, and what any path may make.
TIMES, FLOOR = 2.0, 1e-6


def inputs(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, matrix, targets of which some are dropped, scales of which some are 0."""
    n, v, d = SHAPE
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=generator).to(device, dtype)
    weight = torch.randn(v, d, generator=generator).mul_(0.1).to(device, dtype)
    target = torch.randint(0, v, (n,), generator=generator)
    target[::7] = -100
    scale = torch.rand(n, generator=generator) + 0.1
    scale[1::5] = 0.0
    return hidden, weight, target.to(device), scale.to(device)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """All logits at once."""
    logits = (hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32))
    nats = F.cross_entropy(logits, target, reduction="none", ignore_index=-100)
    learned = (target != -100) * scale.to(logits.dtype)
    return (learned * (nats + Z_LOSS * logits.logsumexp(dim=1) ** 2)).sum()


def chunked(hidden: Tensor, weight: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """The same, chunk by chunk."""
    return linear_cross_entropy(hidden, weight, target, scale, z_loss=Z_LOSS).loss


def results(loss: Tensor, factors: list[Tensor]) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, factors)]


def distance(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_as_near_to_float64_as_the_plain_form(
    dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "chunk_tokens", lambda *_: CHUNK)
    hidden, weight, target, scale = inputs(dtype, device)
    found = {}
    for name, function in (("chunked", chunked), ("plain", plain)):
        factors = [t.clone().requires_grad_() for t in (hidden, weight)]
        value = function(factors[0], factors[1], target, scale)
        found[name] = results(value, factors)
    wide = [t.double().requires_grad_() for t in (hidden, weight)]
    true = results(plain(wide[0], wide[1], target, scale), wide)
    for ours, torchs, exact in zip(found["chunked"], found["plain"], true, strict=True):
        assert distance(ours, exact) <= TIMES * distance(torchs, exact) + FLOOR
    dropped = (target == -100) | (scale == 0)
    assert not found["chunked"][1][dropped].any()


def test_repeated_runs_have_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "chunk_tokens", lambda *_: CHUNK)
    hidden, weight, target, scale = inputs(torch.bfloat16, device)
    factors = [t.requires_grad_() for t in (hidden, weight)]
    first, *others = (results(chunked(hidden, weight, target, scale), factors) for _ in range(10))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
