"""Grouped-query attention that never looks across documents.

Letters: B batch, T new tokens, S attended tokens, D model, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.models.config import DecoderConfig
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotate


class KeyValues:
    """Keys and values of the tokens seen so far in one layer, for decoding token by token."""

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


def document_mask(document_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a token may look, at itself and before in its own document,
    and -inf elsewhere. Shape (B, 1, T, T).

    document_BT   a number per token; equal numbers in one row are one document
    dtype         of the scores; made once, because attention would convert a mask of booleans anew
                  in every layer

    Checked  tests/unit/models/test_decoder.py::test_documents_do_not_leak
    """
    length = document_BT.shape[1]
    same = document_BT[:, :, None] == document_BT[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool, device=document_BT.device).tril()
    open_BTT = torch.zeros(same.shape, dtype=dtype, device=document_BT.device)
    return open_BTT.masked_fill(~(same & causal), -torch.inf)[:, None]


class Attention(nn.Module):
    """Self-attention with queries and keys normalised before the rotation (as Apertus)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.head_width
        self.head_width = width
        self.grouped = config.num_heads != config.num_kv_heads
        self.q_proj = nn.Linear(config.d_model, config.num_heads * width, bias=False)
        self.k_proj = nn.Linear(config.d_model, config.num_kv_heads * width, bias=False)
        self.v_proj = nn.Linear(config.d_model, config.num_kv_heads * width, bias=False)
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
        mask: Tensor | None,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """Attended values, shape (B, T, D).

        rotation   cosine and sine of the new tokens' positions, from `rope.rotation`
        mask       from `document_mask`; None means plain causal attention
        cache      earlier keys and values, extended in place
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
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTE,
            k_BKSE,
            v_BKSE,
            attn_mask=mask,
            is_causal=mask is None and length > 1,
            enable_gqa=self.grouped,
        )
        merged: Tensor = self.o_proj(y_BHTE.transpose(1, 2).reshape(batch, length, -1))
        return merged
