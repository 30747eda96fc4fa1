"""What every layer's attention is told alike: where tokens stand, and whom they may look at.

Letters: B batch, T tokens that look, S tokens that are looked at, E head width, N blocks of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from stamm.base.errors import ConfigError
from stamm.models.config import FUSED_HEAD_STEP, SMALLEST_FLEX_HEAD, WIDEST_FUSED_HEAD
from stamm.models.fused_attention import unavailable
from stamm.models.rope import rotation

# dense: T x S numbers that are added to scores, for torch's scaled_dot_product_attention.
# flex: a list of blocks that hold anything to look at, for torch's flex_attention. It differentiates
#     on a GPU only, and there takes heads of at least 16.
# fused: the documents themselves, for our own kernel (fused_attention): float32 on a CPU, whole
#     sequences that look at themselves, documents numbered in their order.
# auto: flex on a GPU whose heads it takes, fused on a CPU that can build it, otherwise dense.
Kernel = Literal["auto", "dense", "flex", "fused"]
Chosen = Literal["dense", "flex", "fused"]


@dataclass(frozen=True)
class Documents:
    """A number per token, (B, T), not decreasing: each looks at the tokens so far that have its own."""

    document_BT: Tensor


Mask = Tensor | BlockMask | Documents | None

BLOCK = 128


@dataclass(frozen=True)
class Sight:
    """Made once a forward pass, used by all layers.

    turn   cosine and sine of the looking tokens' positions, each (T, E), in the scores' dtype
    mask   whom tokens may look at: what is added to scores, 0 or -inf, (B, 1, T, S), or a list of
           blocks, or documents; None means plain causal attention among the looking tokens
    """

    turn: tuple[Tensor, Tensor]
    mask: Mask


def sight(
    frequencies: Tensor,
    length: int,
    document_BT: Tensor | None,
    dtype: torch.dtype,
    start: int = 0,
    kernel: Kernel = "auto",
) -> Sight:
    """The sight of `length` tokens that follow one another.

    document_BT   a number per token, equal within a document; None means one document a row
    dtype         of the scores
    start         position of the first token: how many came before, whose keys are kept
    kernel        as in `part_sight`, of use where there are documents
    """
    position = torch.arange(start, start + length, device=frequencies.device)
    if document_BT is None:
        mask = None
        if start and length > 1:  # torch's plain causal attention would count keys from the first
            seen = torch.arange(start + length, device=position.device)
            mask = document_mask(position[None] * 0, seen[None] * 0, position, seen, dtype)
        return Sight(rotation(frequencies, position, dtype), mask)
    return part_sight(frequencies, document_BT, document_BT, position, position, dtype, kernel)


def part_sight(
    frequencies: Tensor,
    looking_BT: Tensor,
    seen_BS: Tensor,
    looking_T: Tensor,
    seen_S: Tensor,
    dtype: torch.dtype,
    kernel: Kernel = "auto",
) -> Sight:
    """The sight of some tokens of sequences, at themselves and before in their own documents.

    looking_BT, seen_BS   documents of those that look and of those looked at, in the order in which
                          queries and keys stand; equal numbers in one row are one document
    looking_T, seen_S     positions of both
    dtype                 of the scores
    kernel                what attends: see `Kernel`

    Raises   ConfigError as `choose` does
    """
    told = looking_BT, seen_BS, looking_T, seen_S
    width, whole = 2 * len(frequencies), looking_BT is seen_BS and looking_T is seen_S
    chosen = choose(kernel, frequencies.device, width, dtype, whole=whole)
    if kernel == "auto" and chosen == "fused" and bool((looking_BT.diff() < 0).any()):
        chosen = "dense"
    mask: Mask
    if chosen == "fused":
        mask = Documents(looking_BT)
    elif chosen == "flex":
        mask = block_mask(*told)
    else:
        mask = document_mask(*told, dtype)
    return Sight(rotation(frequencies, looking_T, dtype), mask)


def choose(
    kernel: Kernel,
    device: torch.device,
    head_width: int,
    dtype: torch.dtype = torch.float32,
    *,
    whole: bool = True,
) -> Chosen:
    """What attends on `device` where documents are packed.

    dtype    of the scores
    whole    whether whole sequences look at themselves, not parts of them that a process holds

    Raises   ConfigError for flex on a GPU with heads that it does not take, and for fused where it
             cannot be
    """
    gpu, wide = device.type == "cuda", head_width >= SMALLEST_FLEX_HEAD
    if kernel == "auto":
        if gpu:
            return "flex" if wide else "dense"
        return "dense" if _not_fused(device, head_width, dtype, whole) else "fused"
    if kernel == "flex" and gpu and not wide:
        raise ConfigError(
            f"flex attention takes heads of at least {SMALLEST_FLEX_HEAD}, and these have {head_width}",
            fix='Use kernel="auto", or fewer and wider heads (model.num_heads)',
        )
    if kernel == "fused" and (why := _not_fused(device, head_width, dtype, whole)):
        raise ConfigError(f"fused attention is not to be had: {why}", fix='Use "auto" or "dense"')
    return kernel


def _not_fused(device: torch.device, width: int, dtype: torch.dtype, whole: bool) -> str | None:
    if device.type != "cpu":
        return f"it is for CPUs, and this is {device}"
    if dtype != torch.float32:
        return f"it computes in float32, and scores are {dtype}"
    if width % FUSED_HEAD_STEP or width > WIDEST_FUSED_HEAD:
        return (
            f"heads are {width} wide, not a multiple of {FUSED_HEAD_STEP} up to {WIDEST_FUSED_HEAD}"
        )
    if not whole:
        return "a process holds a part of each sequence only"
    return unavailable()


def document_mask(
    looking_BT: Tensor,
    seen_BS: Tensor,
    looking_T: Tensor,
    seen_S: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """What is added to scores: 0 where a token may look, -inf elsewhere. Shape (B, 1, T, S).

    Arguments as in `part_sight`. Made once in the scores' dtype, because attention would convert a
    mask of booleans anew in every layer.

    Checked  tests/unit/models/test_decoder.py::test_documents_do_not_leak
    """
    open_BTS = looking_BT[:, :, None] == seen_BS[:, None, :]
    open_BTS &= looking_T[:, None] >= seen_S[None, :]
    added_BTS = torch.full(open_BTS.shape, -torch.inf, dtype=dtype, device=open_BTS.device)
    return added_BTS.masked_fill_(open_BTS, 0.0)[:, None]


def block_mask(looking_BT: Tensor, seen_BS: Tensor, looking_T: Tensor, seen_S: Tensor) -> BlockMask:
    """The same as a list of blocks of 128 x 128 tokens; no T x S numbers are ever made.

    A block is left out where no token of it may look at any, and needs no further question where
    all may look at all. Both are read off the smallest and largest position and document of its
    tokens, so that documents may be numbered in any order; where numbers grow along the sequence,
    no block is kept in vain but between neighbouring documents.

    Arguments as in `part_sight`.
    Checked  tests/unit/models/test_attention.py::test_a_block_mask_opens_what_the_dense_one_opens
    """
    first_look_BN, last_look_BN = _ends(looking_BT)
    first_seen_BN, last_seen_BN = _ends(seen_BS)
    early_look_N, late_look_N = (x[:, None] for x in _ends(looking_T))
    early_seen_N, late_seen_N = (x[None, :] for x in _ends(seen_S))
    apart = (first_look_BN[:, :, None] > last_seen_BN[:, None, :]) | (
        last_look_BN[:, :, None] < first_seen_BN[:, None, :]
    )
    kept = ~(apart | (late_look_N < early_seen_N))
    one_look_BN = (first_look_BN == last_look_BN) & _whole(looking_T)
    one_seen_BN = (first_seen_BN == last_seen_BN) & _whole(seen_S)
    one = one_look_BN[:, :, None] & one_seen_BN[:, None, :]
    full = kept & one & (early_look_N >= late_seen_N)

    def may_look(row: Tensor, head: Tensor, looking: Tensor, seen: Tensor) -> Tensor:
        same = looking_BT[row, looking] == seen_BS[row, seen]
        return same & (looking_T[looking] >= seen_S[seen])

    return BlockMask.from_kv_blocks(
        *_listed(kept & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=may_look,
        seq_lengths=(len(looking_T), len(seen_S)),
    )


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each block along the last axis."""
    length = x.shape[-1]
    place = torch.arange(-(-length // BLOCK) * BLOCK, device=x.device).clamp(max=length - 1)
    blocks = x[..., place].view(*x.shape[:-1], -1, BLOCK)
    return blocks.amin(-1), blocks.amax(-1)


def _whole(position: Tensor) -> Tensor:
    """Which blocks are not cut off by the end: all but perhaps the last."""
    length = len(position)
    return torch.arange(1, -(-length // BLOCK) + 1, device=position.device) * BLOCK <= length


def _listed(blocks_BNM: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks are true in each row, and their numbers first; as torch counts them, int32."""
    numbers = blocks_BNM.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks_BNM.sum(-1, dtype=torch.int32)[:, None], numbers.to(torch.int32)[:, None]
