"""Grouped-query attention within documents, with a KV cache for decoding.

Letters: B batch, T new tokens, S attended tokens, D model, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from stamm.models.attention_mask import Documents, Mask
from stamm.models.config import DecoderConfig
from stamm.models.fused_attention import fused_attention
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotate


class KVCache:
    """KV cache: keys and values of one layer's previous tokens, for decoding token by token."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, keys_BKTE: Tensor, values_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values with the new ones appended."""
        if self.keys is not None and self.values is not None:
            keys_BKTE = torch.cat((self.keys, keys_BKTE), dim=2)
            values_BKTE = torch.cat((self.values, values_BKTE), dim=2)
        self.keys, self.values = keys_BKTE, values_BKTE
        return keys_BKTE, values_BKTE


class Attention(nn.Module):
    """Self-attention; queries and keys are normalised before the rotation, as in Apertus.

    gather   all-gather of keys or values for a sequence that is divided over processes: this
             process's (B, K, T, E) to those of all tokens, (B, K, S, E); None otherwise
    """

    gather: Callable[[Tensor], Tensor] | None = None

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.head_width
        self.head_width = width
        bias = config.qkv_bias
        self.q_proj = nn.Linear(config.d_model, config.num_heads * width, bias=bias)
        self.k_proj = nn.Linear(config.d_model, config.num_kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(config.d_model, config.num_kv_heads * width, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * width, config.d_model, bias=False)
        if config.qk_norm:
            self.q_norm: RMSNorm | None = RMSNorm(width, config.norm_eps)
            self.k_norm: RMSNorm | None = RMSNorm(width, config.norm_eps)
        else:
            self.q_norm = self.k_norm = None

    def forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attended values, shape (B, T, D).

        rotation   cosine and sine of the new tokens' positions, as in `AttentionInputs`
        mask       attention mask, as in `AttentionInputs`
        cache      KV cache of earlier tokens, extended in place
        """
        batch, length, _ = x_BTD.shape
        heads = (batch, length, -1, self.head_width)
        q_BHTE = self.q_proj(x_BTD).view(heads).transpose(1, 2)
        k_BKTE = self.k_proj(x_BTD).view(heads).transpose(1, 2)
        v_BKSE = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q_BHTE, k_BKTE = self.q_norm(q_BHTE), self.k_norm(k_BKTE)
        q_BHTE, k_BKSE = rotate(q_BHTE, *rotation), rotate(k_BKTE, *rotation)
        if cache is not None:
            k_BKSE, v_BKSE = cache.extend(k_BKSE, v_BKSE)
        if self.gather is not None:
            k_BKSE, v_BKSE = self.gather(k_BKSE), self.gather(v_BKSE)
        y_BHTE = attend(q_BHTE, k_BKSE, v_BKSE, mask)
        merged: Tensor = self.o_proj(y_BHTE.transpose(1, 2).reshape(batch, length, -1))
        return merged


def attend(q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Mask) -> Tensor:
    """softmax(q . k / sqrt(E) + mask) v, shape (B, H, T, E).

    Edge     a block mask has gradients on a GPU only; on a CPU torch forms all scores at once, which
             only tests use
    Checked  tests/unit/models/test_attention.py, tests/gpu/test_gpu_attention.py
    """
    if isinstance(mask, Documents):
        return fused_attention(q_BHTE, k_BKSE, v_BKSE, mask.document_BT)
    grouped = q_BHTE.shape[1] != k_BKSE.shape[1]
    if isinstance(mask, BlockMask):
        # Inside a compiled layer it is compiled with the layer.
        alone = q_BHTE.is_cuda and not torch.compiler.is_compiling()
        flex: Any = _compiled_flex() if alone else flex_attention
        y_BHTE: Tensor = flex(q_BHTE, k_BKSE, v_BKSE, block_mask=mask, enable_gqa=grouped)
        return y_BHTE
    return F.scaled_dot_product_attention(
        q_BHTE,
        k_BKSE,
        v_BKSE,
        attn_mask=mask,
        is_causal=mask is None and q_BHTE.shape[2] > 1,
        enable_gqa=grouped,
    )


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, fullgraph=True)  # uncompiled it forms all T x S scores
