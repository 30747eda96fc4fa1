"""Attention masks, all of them built here, and the rotations of a forward pass: computed once for all layers.

The kernels in C++ (`fused_attention`, `decode_kernel`) and exported graphs (`export.onnx_graph`) mask by
themselves, from document numbers, positions and lengths.

Letters: B batch, T query tokens, S key tokens, C columns of a KV cache, E head width, N blocks of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from stamm.base.errors import ConfigError
from stamm.models.config import (
    FUSED_HEAD_STEP,
    SMALLEST_FLEX_HEAD,
    WIDEST_FUSED_HEAD,
    DecoderConfig,
)
from stamm.models.fused_attention import unavailable_reason
from stamm.models.rope import rotation

# dense: a T x S mask added to scores, for torch's scaled_dot_product_attention.
# flex: a block mask, for torch's flex_attention. Gradients on a GPU only, heads of at least 16.
# fused: document numbers, for stamm's kernel (fused_attention): float32 on a CPU, self-attention of
#     whole sequences, documents numbered in order.
# auto: flex on a GPU that supports the heads, fused on a CPU that can build it, otherwise dense.
Kernel = Literal["auto", "dense", "flex", "fused"]
Chosen = Literal["dense", "flex", "fused"]


@dataclass(frozen=True)
class Documents:
    """Document number of each token, (B, T), not decreasing: attention is causal within each number."""

    document_BT: Tensor


Mask = Tensor | BlockMask | Documents | None

BLOCK = 128


@dataclass(frozen=True)
class AttentionInputs:
    """Rotation and attention mask of a forward pass, for all layers.

    rotation   cosine and sine of the query positions, each (T, E), in the scores' dtype
    mask       attention mask: 0 or -inf, added to scores, (B, 1, T, S); a block mask; or documents.
               None means causal attention among the query tokens
    """

    rotation: tuple[Tensor, Tensor]
    mask: Mask


class AttentionModel(Protocol):
    """A model whose attention inputs are built: a DecoderStack."""

    config: DecoderConfig

    @property
    def frequencies(self) -> Tensor:
        """Radians per token of each rotated pair."""


def attention_inputs(
    model: AttentionModel,
    length: int,
    document_BT: Tensor | None,
    dtype: torch.dtype,
    start: int = 0,
    kernel: Kernel = "auto",
) -> AttentionInputs:
    """Attention inputs of `length` consecutive tokens.

    document_BT   a number per token, equal within a document; None means one document a row
    dtype         of the scores
    start         position of the first token: the number of tokens in the KV cache
    kernel        as in `partial_attention_inputs`; used only with documents
    """
    position = torch.arange(start, start + length, device=model.frequencies.device)
    if document_BT is None:
        mask = None
        if start and length > 1:  # torch's is_causal aligns the first query with the first key
            key = torch.arange(start + length, device=position.device)
            mask = document_mask(position[None] * 0, key[None] * 0, position, key, dtype)
        return AttentionInputs(rotation(model.frequencies, position, dtype), mask)
    return partial_attention_inputs(
        model, document_BT, document_BT, position, position, dtype, kernel
    )


def partial_attention_inputs(
    model: AttentionModel,
    query_BT: Tensor,
    key_BS: Tensor,
    query_T: Tensor,
    key_S: Tensor,
    dtype: torch.dtype,
    kernel: Kernel = "auto",
) -> AttentionInputs:
    """Attention inputs of some tokens of sequences: causal attention within documents.

    query_BT, key_BS   document numbers of queries and keys, in their order; equal numbers in one row
                       are one document
    query_T, key_S     positions of queries and keys
    dtype              of the scores
    kernel             attention implementation: see `Kernel`

    Raises   ConfigError as `choose` does
    """
    tokens = query_BT, key_BS, query_T, key_S
    width, whole = model.config.head_width, query_BT is key_BS and query_T is key_S
    chosen = choose(kernel, query_BT.device, width, dtype, whole=whole)
    if kernel == "auto" and chosen == "fused" and bool((query_BT.diff() < 0).any()):
        chosen = "dense"
    mask: Mask
    if chosen == "fused":
        mask = Documents(query_BT)
    elif chosen == "flex":
        mask = block_mask(*tokens)
    else:
        mask = document_mask(*tokens, dtype)
    return AttentionInputs(rotation(model.frequencies, query_T, dtype), mask)


def branch_attention_inputs(
    model: AttentionModel, position_BT: Tensor, segment_BT: Tensor, start: int, dtype: torch.dtype
) -> AttentionInputs:
    """Attention inputs of rows with a beginning and its branches, which do not attend to each other.

    position_BT   of each token in its sequence, which is the beginning and one branch
    segment_BT    0 for the beginning, then one number for each branch
    start         tokens of the KV cache, which all tokens attend to
    dtype         of the scores
    """
    cosine, sine = rotation(model.frequencies, position_BT.flatten(), dtype)
    shape = (*position_BT.shape, -1)
    open_BTT = (segment_BT[:, None, :] == 0) | (segment_BT[:, None, :] == segment_BT[:, :, None])
    open_BTT &= torch.ones_like(open_BTT[0]).tril()
    mask_BTS = torch.nn.functional.pad(_additive(open_BTT, dtype), (start, 0))
    return AttentionInputs((cosine.view(shape), sine.view(shape)), mask_BTS[:, None])


def cache_mask(first_B: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Additive attention mask of a KV cache: 0 from column `first_B` of each row on, -inf before, (B, C)."""
    open_BC = torch.arange(columns, device=first_B.device) >= first_B[:, None]
    return _additive(open_BC, dtype)


def choose(
    kernel: Kernel,
    device: torch.device,
    head_width: int,
    dtype: torch.dtype = torch.float32,
    *,
    whole: bool = True,
) -> Chosen:
    """The attention implementation for packed documents on `device`.

    dtype    of the scores
    whole    self-attention of whole sequences, not of parts divided over processes

    Raises   ConfigError for flex on a GPU with narrower heads than it supports, and for fused
             where it is not available
    """
    gpu, wide = device.type == "cuda", head_width >= SMALLEST_FLEX_HEAD
    if kernel == "auto":
        if gpu:
            return "flex" if wide else "dense"
        return "dense" if _not_fused(device, head_width, dtype, whole) else "fused"
    if kernel == "flex" and gpu and not wide:
        raise ConfigError(
            f"flex attention needs heads of width {SMALLEST_FLEX_HEAD} or more, these have {head_width}",
            fix='Use kernel="auto", or fewer and wider heads (model.num_heads)',
        )
    if kernel == "fused" and (why := _not_fused(device, head_width, dtype, whole)):
        raise ConfigError(f"fused attention is not available: {why}", fix='Use "auto" or "dense"')
    return kernel


def _not_fused(device: torch.device, width: int, dtype: torch.dtype, whole: bool) -> str | None:
    if device.type != "cpu":
        return f"it runs on CPUs, and the device is {device}"
    if dtype != torch.float32:
        return f"it computes in float32, and scores are {dtype}"
    if width % FUSED_HEAD_STEP or width > WIDEST_FUSED_HEAD:
        return (
            f"heads are {width} wide, not a multiple of {FUSED_HEAD_STEP} up to {WIDEST_FUSED_HEAD}"
        )
    if not whole:
        return "a process holds a part of each sequence only"
    return unavailable_reason()


def document_mask(
    query_BT: Tensor,
    key_BS: Tensor,
    query_T: Tensor,
    key_S: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Additive attention mask: 0 where a query attends, -inf elsewhere. Shape (B, 1, T, S).

    Arguments as in `partial_attention_inputs`. In the scores' dtype, because attention would convert
    a boolean mask again in every layer.

    Checked  tests/unit/models/test_decoder.py::test_documents_do_not_leak
    """
    open_BTS = query_BT[:, :, None] == key_BS[:, None, :]
    open_BTS &= query_T[:, None] >= key_S[None, :]
    return _additive(open_BTS, dtype)[:, None]


def _additive(open_: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `open_` is true and -inf elsewhere."""
    added = torch.full(open_.shape, -torch.inf, dtype=dtype, device=open_.device)
    return added.masked_fill_(open_, 0.0)


def block_mask(query_BT: Tensor, key_BS: Tensor, query_T: Tensor, key_S: Tensor) -> BlockMask:
    """The same attention mask as a block mask of 128 x 128 tokens, without T x S numbers.

    A block is left out if none of its queries attends to any of its keys, and full if all attend to
    all. Both follow from the smallest and largest position and document of its tokens, so documents
    may be numbered in any order; with increasing numbers, the only superfluous blocks are those
    between neighbouring documents.

    Arguments as in `partial_attention_inputs`.
    Checked  tests/unit/models/test_attention.py::test_a_block_mask_opens_what_the_dense_one_opens
    """
    first_query_BN, last_query_BN = _ends(query_BT)
    first_key_BN, last_key_BN = _ends(key_BS)
    early_query_N, late_query_N = (x[:, None] for x in _ends(query_T))
    early_key_N, late_key_N = (x[None, :] for x in _ends(key_S))
    apart = (first_query_BN[:, :, None] > last_key_BN[:, None, :]) | (
        last_query_BN[:, :, None] < first_key_BN[:, None, :]
    )
    kept = ~(apart | (late_query_N < early_key_N))
    one_query_BN = (first_query_BN == last_query_BN) & _whole(query_T)
    one_key_BN = (first_key_BN == last_key_BN) & _whole(key_S)
    single_document = one_query_BN[:, :, None] & one_key_BN[:, None, :]
    full = kept & single_document & (early_query_N >= late_key_N)

    def may_attend(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = query_BT[row, query] == key_BS[row, key]
        return same & (query_T[query] >= key_S[key])

    return BlockMask.from_kv_blocks(
        *_listed(kept & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=may_attend,
        seq_lengths=(len(query_T), len(key_S)),
    )


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each block along the last axis."""
    length = x.shape[-1]
    index = torch.arange(-(-length // BLOCK) * BLOCK, device=x.device).clamp(max=length - 1)
    blocks = x[..., index].view(*x.shape[:-1], -1, BLOCK)
    return blocks.amin(-1), blocks.amax(-1)


def _whole(position: Tensor) -> Tensor:
    """Whether each block has all its tokens: true of all but possibly the last."""
    length = len(position)
    return torch.arange(1, -(-length // BLOCK) + 1, device=position.device) * BLOCK <= length


def _listed(blocks_BNM: Tensor) -> tuple[Tensor, Tensor]:
    """Number of true blocks in each row and their indices first, int32, as torch expects them."""
    numbers = blocks_BNM.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks_BNM.sum(-1, dtype=torch.int32)[:, None], numbers.to(torch.int32)[:, None]
