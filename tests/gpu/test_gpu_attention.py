"""Attention by blocks on the device: results and gradients against float64, their bits, its memory.

A CPU has no gradients of it: there the rehearsal holds results alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stamm.models.attention import attend
from stamm.models.attention_mask import (
    AttentionInputs,
    Mask,
    attention_inputs,
    block_mask,
    document_mask,
    partial_attention_inputs,
)
from stamm.models.config import DecoderConfig, Llama3Rope, PlainFFN
from stamm.models.decoder import Decoder, DecoderStack, build_decoder

# Torch warns that what is not compiled makes all scores at once; in a rehearsal on a CPU it does.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

# Of the error that the dense path makes in the same dtype, and what any path may make.
TIMES, FLOOR = 2.0, 2.0**-22
DTYPES = [torch.bfloat16, torch.float32]
# rows, query heads, key heads, tokens, head width
SHAPES = [(2, 4, 2, 1000, 64), (1, 8, 1, 640, 128), (3, 4, 4, 100, 16), (1, 4, 2, 2048, 96)]
MODEL = DecoderConfig(
    vocab_size=97,
    d_model=128,
    num_layers=2,
    ffn=PlainFFN(width=192),
    rope=Llama3Rope(original_context=64),
    max_context=1024,
    init_std=0.1,
)


def packed(rows: int, length: int, share: float, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return (torch.rand(rows, length, generator=draw) < share).cumsum(1).to(device)


def results(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, mask: Mask, gradients: bool
) -> list[Tensor]:
    """What is attended, and the gradients of queries, keys and values."""
    leaves = [x.detach().requires_grad_(gradients) for x in (q, k, v)]
    attended = attend(*leaves, mask)  # type: ignore[call-arg]
    taken = torch.autograd.grad(attended, leaves, weight) if gradients else ()
    return [x.detach().double() for x in (attended, *taken)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_as_near_to_float64_as_the_dense_mask(
    shape: tuple[int, int, int, int, int], divided: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """Where sequences are divided, queries are a piece from the front and one from the back."""
    torch.compiler.reset()
    rows, heads, kv_heads, length, width = shape
    draw = torch.Generator().manual_seed(1)
    q, k, v, weight = (
        torch.randn(rows, h, length, width, generator=draw).to(device, dtype)
        for h in (heads, kv_heads, kv_heads, heads)
    )
    document = packed(rows, length, 0.01, device)
    looking = seen = torch.arange(length, device=device)
    if divided:
        pieces = seen.chunk(4)
        seen = torch.cat((pieces[0], pieces[3], pieces[1], pieces[2]))
        looking = torch.cat((pieces[1], pieces[2]))
    told = document[:, looking], document[:, seen], looking, seen
    q, weight, k, v = (
        x[:, :, at] for x, at in ((q, looking), (weight, looking), (k, seen), (v, seen))
    )
    gpu = device.type == "cuda"
    exact = [x.double() for x in (q, k, v, weight)]
    true = results(*exact, document_mask(*told, torch.float64), gpu)  # type: ignore[call-arg, arg-type]
    dense = results(q, k, v, weight, document_mask(*told, dtype), gpu)
    blocks = results(q, k, v, weight, block_mask(*told), gpu)
    for right, other, found in zip(true, dense, blocks, strict=True):
        limit = TIMES * (other - right).norm() + FLOOR * right.norm()
        assert (found - right).norm() <= limit
    if gpu:  # no sum depends on which block is done first
        again = results(q, k, v, weight, block_mask(*told), gpu)
        assert all(torch.equal(a, b) for a, b in zip(blocks, again, strict=True))


def _learned(
    decoder: Decoder, tokens: Tensor, seen: AttentionInputs, gradients: bool
) -> tuple[Tensor, list[Tensor]]:
    keep = torch.ones_like(tokens, dtype=torch.bool)
    with torch.set_grad_enabled(gradients):
        found = decoder.losses(tokens, tokens.roll(-1, 1), keep, float(keep.sum()), attention=seen)
    loss = found.loss
    taken = torch.autograd.grad(loss, list(decoder.parameters())) if gradients else ()
    return loss.detach(), list(taken)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_decoder_learns_the_same_by_blocks(
    compiled: bool, recompute: bool, device: torch.device
) -> None:
    """Loss and gradients in float32, layers compiled whole and their inputs alone kept, or not."""
    torch.compiler.reset()
    document = packed(2, 900, 0.01, device)
    tokens = (torch.arange(1800).view(2, 900) * 31 % 97).to(device)
    gpu = device.type == "cuda"
    found = []
    for kernel in ("dense", "flex"):
        decoder = build_decoder(MODEL, seed=1).to(device)
        for layer in decoder.model.layers:
            layer.recompute = recompute
            if compiled and kernel == "flex":
                layer.compile(fullgraph=True)
        seen = attention_inputs(decoder.model, 900, document, torch.float32, kernel=kernel)  # type: ignore[arg-type]
        found.append(_learned(decoder, tokens, seen, gpu))
    (dense, expected), (blocks, taken) = found
    torch.testing.assert_close(blocks, dense, rtol=1e-5, atol=0)
    for one, other in zip(taken, expected, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()


@torch.no_grad()
def test_another_document_changes_not_one_bit(device: torch.device) -> None:
    decoder = build_decoder(MODEL, seed=1).to(device, torch.bfloat16)
    document = torch.tensor([0] * 170 + [1] * 400 + [2] * 130, device=device)[None]
    tokens = (torch.arange(700)[None] * 31 % 97).to(device)
    other = torch.where(document == 1, tokens, (tokens + 1) % 97)
    seen = attention_inputs(decoder.model, 700, document, torch.bfloat16, kernel="flex")
    first, second = (decoder.model(x, attention=seen) for x in (tokens, other))
    assert torch.equal(first[:, 170:570], second[:, 170:570])
    assert not torch.equal(first[:, :170], second[:, :170])


def test_65536_packed_tokens_need_no_mask_of_all_pairs(device: torch.device) -> None:
    """A dense mask alone would be 8 GiB in bfloat16; here all of attention, forward and backward."""
    if device.type != "cuda":
        pytest.skip("a CPU makes all scores at once")
    torch.compiler.reset()
    length = 65_536
    q, k, v = (
        torch.randn(1, h, length, 128, device=device, dtype=torch.bfloat16) for h in (8, 2, 2)
    )
    document, at = packed(1, length, 1 / 2000, device), torch.arange(length, device=device)
    model = DecoderStack(replace(MODEL, num_heads=1, num_kv_heads=1)).to(device)  # heads of 128
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    seen = partial_attention_inputs(
        model, document, document, at, at, torch.bfloat16
    )  # auto: by blocks
    results(q, k, v, torch.ones_like(q), seen.mask, True)
    assert torch.cuda.max_memory_allocated(device) - before < 3 * 2**30
