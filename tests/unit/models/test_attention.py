"""Attention that knows documents: both masks open the same, both kernels say the same, and positions
turn by the angles they should.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from stamm.base.errors import ConfigError
from stamm.models.attention import KVCache, attend
from stamm.models.attention_mask import (
    attention_inputs,
    block_mask,
    choose,
    document_mask,
    partial_attention_inputs,
)
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, DecoderStack, build_decoder
from stamm.models.fused_attention import unavailable_reason
from stamm.models.rope import inverse_frequencies, rotate, rotation

# Torch warns that what is not compiled makes all scores at once; on a CPU that is what is wanted.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

SMALL = DecoderConfig(
    vocab_size=64, d_model=64, num_layers=2, ffn=PlainFFN(width=48), max_context=512
)


def packed(rows: int, length: int, share: float, seed: int = 0) -> Tensor:
    """Documents of 1 / `share` tokens on average."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, length, generator=draw) < share).cumsum(1)


def cut(length: int, *ends: int) -> Tensor:
    """One row of documents that end there."""
    return torch.bucketize(torch.arange(length), torch.tensor(ends), right=True)[None]


PACKINGS = {
    "one document": cut(300),
    "one long document": cut(1000),
    "shorter than a block": cut(50, 7, 8, 30),
    "one block": cut(128, 64),
    "whole blocks": cut(512, 128, 256),
    "a cut inside blocks": cut(512, 100, 101, 400),
    "a document a token": torch.arange(200)[None],
    "many, two rows": packed(2, 333, 0.05),
    "few, three rows": packed(3, 640, 0.004, seed=1),
    "numbers that fall": -packed(2, 333, 0.05),
    "numbers in no order": (packed(2, 333, 0.05) * 37) % 11,
    "the same number again later": packed(2, 400, 0.01, seed=2) % 2,
}


def positions(length: int) -> Tensor:
    return torch.arange(length)


def stretches(length: int, ways: int) -> list[Tensor]:
    """Whose queries stand where when a sequence is divided: one piece from the front, one from the back."""
    pieces = positions(length).chunk(2 * ways)
    return [torch.cat((pieces[i], pieces[-1 - i])) for i in range(ways)]


def opened(mask: BlockMask, rows: int) -> Tensor:
    """What a list of blocks opens, token by token, (B, T, S)."""
    length, seen = mask.seq_lengths
    found = torch.zeros(rows, length, seen, dtype=torch.bool)
    lists = (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)
    for row in range(rows):
        for whole, (counts, numbers) in enumerate(lists):
            assert counts is not None and numbers is not None
            for i, count in enumerate(counts[row, 0].tolist()):
                for j in numbers[row, 0, i, :count].tolist():
                    t = torch.arange(128 * i, min(128 * i + 128, length))
                    s = torch.arange(128 * j, min(128 * j + 128, seen))
                    assert not found[row, t[0] : t[-1] + 1, s[0] : s[-1] + 1].any(), "listed twice"
                    may = mask.mask_mod(torch.tensor(row), torch.tensor(0), t[:, None], s[None])
                    found[row, t[0] : t[-1] + 1, s[0] : s[-1] + 1] = may | bool(whole)
    return found


def slow_mask(looking: Tensor, seen: Tensor, at: Tensor, of: Tensor) -> Tensor:
    """Pair by pair, in plain Python."""
    rows = [
        [
            [a == b and i >= j for b, j in zip(keys, of.tolist(), strict=True)]
            for a, i in zip(queries, at.tolist(), strict=True)
        ]
        for queries, keys in zip(looking.tolist(), seen.tolist(), strict=True)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize("name", ["shorter than a block", "a document a token"])
def test_the_dense_mask_is_causal_within_documents(name: str) -> None:
    document = PACKINGS[name]
    at = positions(document.shape[1])
    mask = document_mask(document, document, at, at, torch.bfloat16)
    assert mask.dtype == torch.bfloat16
    assert set(mask.flatten().tolist()) == {0.0, -math.inf}
    assert torch.equal(mask[:, 0] == 0, slow_mask(document, document, at, at))


@pytest.mark.parametrize("name", PACKINGS)
def test_a_block_mask_opens_what_the_dense_one_opens(name: str) -> None:
    document = PACKINGS[name]
    at = positions(document.shape[1])
    mask = block_mask(document, document, at, at)
    dense = document_mask(document, document, at, at, torch.float32)[:, 0] == 0
    assert torch.equal(opened(mask, len(document)), dense)


def by_torch(looking: Tensor, seen: Tensor, at: Tensor, of: Tensor) -> BlockMask:
    """The lists that torch makes of all pairs."""

    def may_attend(row: Tensor, head: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (looking[row, t] == seen[row, s]) & (at[t] >= of[s])

    return create_block_mask(may_attend, len(looking), None, len(at), len(of), device="cpu")


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize(
    "name", ["one long document", "many, two rows", "few, three rows", "numbers in no order"]
)
def test_so_it_does_where_sequences_are_divided(name: str, ways: int) -> None:
    """And a block is full where torch says so: never one that the end cuts off."""
    document = PACKINGS[name][:, : PACKINGS[name].shape[1] // (2 * ways) * (2 * ways)]
    parts = stretches(document.shape[1], ways)
    seen = torch.cat(parts)
    for looking in parts:
        told = document[:, looking], document[:, seen], looking, seen
        ours, theirs = block_mask(*told), by_torch(*told)
        dense = document_mask(*told, torch.float32)[:, 0] == 0
        assert torch.equal(opened(ours, len(document)), dense)
        assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)


@pytest.mark.parametrize("name", [n for n in PACKINGS if "again" not in n and "order" not in n])
def test_no_block_is_kept_in_vain(name: str) -> None:
    """Where numbers only grow along a row, or only fall, the lists are torch's."""
    document = PACKINGS[name]
    at = positions(document.shape[1])
    ours, theirs = (make(document, document, at, at) for make in (block_mask, by_torch))
    for field in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field)), field
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def test_a_long_sequence_is_listed_in_little_memory() -> None:
    """65,536 tokens: all pairs would be 4.3e9 numbers."""
    document = packed(1, 65_536, 1 / 1500)
    with Largest() as largest:
        mask = block_mask(document, document, positions(65_536), positions(65_536))
    assert largest.numbers <= 512 * 512 + 2 * 65_536
    assert 0 < mask.kv_num_blocks.sum() < 3 * 512


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor made has, and how many tensors of one shape are made."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.shape, self.numbers, self.times = shape, 0, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
                self.times += bool(self.shape) and tensor.shape[-len(self.shape) :] == self.shape
        return made


def test_a_layer_makes_no_mask_and_no_angles_of_its_own() -> None:
    """What is T x S, and what is computed from positions, is made as often for 1 layer as for 3."""
    document = packed(2, 61, 0.1)
    tokens = torch.arange(122).view(2, 61) % 64
    times = []
    for layers in (1, 3):
        decoder = build_decoder(replace(SMALL, num_layers=layers), seed=1).to(torch.bfloat16)
        with torch.no_grad(), Largest((61, 61)) as pairs, Turns() as turns:
            decoder(tokens, document)
        times.append((pairs.times, turns.times))
    assert times[0] == times[1]
    assert min(times[0]) > 0


class Turns(TorchDispatchMode):
    """How often a cosine or a sine is taken, or a table of theirs is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.times += name in ("cos", "sin") or (name == "_to_copy" and made.shape == (61, 16))
        return made


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", PACKINGS)
def test_both_kernels_say_the_same(name: str, kv_heads: int) -> None:
    """Errors to float64: those of flex are below twice those of the dense path, plus one rounding."""
    document = PACKINGS[name]
    length = document.shape[1]
    draw = torch.Generator().manual_seed(5)
    q, k, v = (
        2 * torch.randn(len(document), h, length, 16, generator=draw)
        for h in (4, kv_heads, kv_heads)
    )
    at = positions(length)
    told = document, document, at, at
    true = attend(q.double(), k.double(), v.double(), document_mask(*told, torch.float64))
    dense = attend(q, k, v, document_mask(*told, torch.float32))
    flex = attend(q, k, v, block_mask(*told))
    assert (flex - true).abs().max() <= 2 * (dense - true).abs().max() + 2.0**-23 * true.abs().max()


@torch.no_grad()
def test_a_divided_sequence_says_what_the_whole_one_says() -> None:
    """Queries of one process, keys of all in the order in which they are gathered; RoPE included."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, h, 328, 16, generator=draw) for h in (4, 2, 2))
    document = packed(2, 328, 0.02)
    model = DecoderStack(replace(SMALL, num_heads=4, num_kv_heads=2))
    at = positions(328)
    whole = partial_attention_inputs(model, document, document, at, at, torch.float32, "dense")
    turned = rotate(k, *whole.rotation)
    expected = attend(rotate(q, *whole.rotation), turned, v, whole.mask)
    parts = stretches(328, 2)
    seen = torch.cat(parts)
    for looking in parts:
        for kernel in ("dense", "flex"):
            told = document[:, looking], document[:, seen], looking, seen, torch.float32, kernel
            part = partial_attention_inputs(model, *told)  # type: ignore[arg-type]
            found = attend(
                rotate(q[:, :, looking], *part.rotation),
                turned[:, :, seen],
                v[:, :, seen],
                part.mask,
            )
            torch.testing.assert_close(found, expected[:, :, looking], rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ffn", [PlainFFN(width=48), GatedFFN(width=32)])
def test_a_decoder_says_the_same_with_either(ffn: PlainFFN | GatedFFN, dtype: torch.dtype) -> None:
    decoder = build_decoder(replace(SMALL, ffn=ffn), seed=1).to(dtype)
    document = packed(2, 200, 0.03)
    tokens = torch.randint(0, 64, (2, 200), generator=torch.Generator().manual_seed(0))
    dense = _hidden(decoder, tokens, document, "dense")
    auto = "fused" if dtype == torch.float32 and unavailable_reason() is None else "dense"
    for kernel in ("flex", auto):
        other = _hidden(decoder, tokens, document, kernel)
        assert other.dtype == dtype
        assert (other - dense).abs().max() <= 8 * torch.finfo(dtype).eps * dense.abs().max()
    assert torch.equal(decoder.model(tokens, document), other), "auto on a CPU"
    shuffled = (document + 1) % (document.max() + 1)  # numbers that decrease are for a mask alone
    again = _hidden(decoder, tokens, shuffled, "dense")
    assert torch.equal(again, dense)
    assert torch.equal(decoder.model(tokens, shuffled), dense)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["dense", "flex", "fused"])
def test_another_document_changes_not_one_bit(kernel: str) -> None:
    """Of both neighbours: the one before, and the one after."""
    decoder = build_decoder(SMALL, seed=1)
    document = cut(300, 90, 230)
    tokens = torch.randint(0, 64, (1, 300), generator=torch.Generator().manual_seed(0))
    other = torch.where(document == 1, tokens, (tokens + 1) % 64)
    first, second = (_hidden(decoder, x, document, kernel) for x in (tokens, other))
    assert torch.equal(first[:, 90:230], second[:, 90:230])
    assert not torch.equal(first[:, :90], second[:, :90])


def _hidden(decoder: Decoder, tokens: Tensor, document: Tensor, kernel: Any) -> Tensor:
    if kernel == "fused" and unavailable_reason():
        pytest.skip("nothing can be compiled here")
    dtype = decoder.lm_head.weight.dtype
    seen = attention_inputs(decoder.model, tokens.shape[1], document, dtype, kernel=kernel)
    assert isinstance(seen.mask, BlockMask) == (kernel == "flex")
    hidden: Tensor = decoder.model(tokens, attention=seen)
    return hidden


@torch.no_grad()
@pytest.mark.parametrize("pieces", [(10, 10), (1, 19), (7, 1, 12)], ids=str)
def test_a_sequence_may_be_read_in_pieces(pieces: tuple[int, ...]) -> None:
    """Several tokens after kept ones see those, and of each other none that comes later."""
    decoder = build_decoder(SMALL, seed=1)
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(0))
    caches, found, start = [KVCache() for _ in decoder.model.layers], [], 0
    for piece in tokens.split(pieces, dim=1):
        found.append(decoder.model(piece, caches=caches, start=start))
        start += piece.shape[1]
    whole = decoder.model(tokens)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_what_attends_is_chosen_by_the_device() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 3)
    fused = "dense" if unavailable_reason() else "fused"
    assert [choose("auto", cpu, 64), choose("auto", gpu, 64)] == [fused, "flex"]
    assert choose("auto", cpu, 64, torch.bfloat16) == choose("auto", cpu, 62) == "dense"
    assert choose("auto", cpu, 64, whole=False) == choose("auto", cpu, 260) == "dense"
    assert [choose("auto", gpu, 16), choose("auto", gpu, 8)] == ["flex", "dense"]
    assert [choose("dense", gpu, 64), choose("flex", cpu, 8)] == ["dense", "flex"]
    with pytest.raises(ConfigError, match=r"width 16 or more, these have 8.*num_heads"):
        choose("flex", gpu, 8)
    with pytest.raises(
        ConfigError, match=r"on CPUs, and the device is cuda:3.*\"auto\" or \"dense\""
    ):
        choose("fused", gpu, 64)
    with pytest.raises(ConfigError, match=r"float32, and scores are torch.bfloat16"):
        choose("fused", cpu, 64, torch.bfloat16)
    with pytest.raises(ConfigError, match=r"a part of each sequence"):
        choose("fused", cpu, 64, whole=False)


ROPES = [PlainRope(theta=12e6), PlainRope(theta=500_000.0), Llama3Rope(theta=12e6)]


@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("last", [65_535, 999_999, 2**24 - 1])
def test_angles_are_right_at_a_million_positions(rope: PlainRope | Llama3Rope, last: int) -> None:
    """Against Python's own float64: off by one rounding, where angles in float32 are off by 2e-3 rad."""
    frequencies = inverse_frequencies(rope, 128)
    at = torch.tensor([0, 1, last // 3, last - 1, last])
    cosine, sine = rotation(frequencies, at)
    assert cosine.dtype == sine.dtype == torch.float32
    for row, position in enumerate(at.tolist()):
        for pair, frequency in enumerate(frequencies.tolist()):
            for place in (pair, pair + 64):
                assert abs(cosine[row, place].item() - math.cos(position * frequency)) <= 2.0**-24
                assert abs(sine[row, place].item() - math.sin(position * frequency)) <= 2.0**-24
    narrow = torch.outer(at.float(), frequencies).double()
    off = (narrow - torch.outer(at.double(), frequencies.double())).abs().max().item()
    assert off > 1e-3, "angles in float32 would do"


def test_only_differences_of_positions_enter_the_scores() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 40, 128, generator=draw, dtype=torch.float64) for _ in range(2))
    frequencies = inverse_frequencies(PlainRope(theta=12e6), 128)
    near, far = (
        rotate(q, *rotation(frequencies, positions(40) + first))
        @ rotate(k, *rotation(frequencies, positions(40) + first)).mT
        for first in (0, 1_000_000)
    )
    torch.testing.assert_close(far, near, rtol=0, atol=1e-5)


def test_frequencies_stay_float32_where_weights_are_cast() -> None:
    decoder = build_decoder(replace(SMALL, rope=Llama3Rope()), seed=1)
    before = decoder.model.frequencies.clone()
    decoder.to(torch.bfloat16)
    assert decoder.model.frequencies.dtype == torch.float32
    assert torch.equal(decoder.model.frequencies, before)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_rotation_by_halves_has_the_bits_of_the_whole(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x, up = (torch.randn(2, 40, 3, 16, generator=draw).to(dtype).transpose(1, 2) for _ in range(2))
    x[torch.rand(x.shape, generator=draw) < 0.1] = -0.0
    angle = torch.randn(40, 16, generator=draw)
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
    sine[0] = 0

    def whole(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return y * cosine + torch.cat((-second, first), -1) * sine

    def bits(turned: Callable[[Tensor], Tensor]) -> list[Tensor]:
        y = x.clone().requires_grad_()
        z = turned(y)
        z.backward(up)  # type: ignore[no-untyped-call]  # torch does not type it
        assert y.grad is not None
        return [t.detach().contiguous().view(torch.uint8) for t in (z, y.grad)]

    pairs = zip(bits(whole), bits(lambda y: rotate(y, cosine, sine)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
