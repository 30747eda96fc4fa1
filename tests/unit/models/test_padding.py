"""Batches of sequences of similar length stay within their tokens; what is padding is known."""

from __future__ import annotations

import torch

from stamm.models.padding import length_batches, padded


def test_batches_hold_similar_lengths_and_at_most_their_tokens() -> None:
    lengths = [7, 3, 0, 3, 30, 4, 7]
    batches = list(length_batches(lengths, 14))
    assert batches == [[1, 3, 5], [0, 6], [4]]  # 3 x 4 and 2 x 7 tokens; 30 alone; 0 left out
    assert list(length_batches([], 14)) == list(length_batches([0], 14)) == []


def test_padding_follows_a_sequence_and_is_not_its_own() -> None:
    tokens_BT, own_BT = padded([[5, 6, 7], (8,)])
    assert tokens_BT.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert own_BT.tolist() == [[True, True, True], [True, False, False]]
    assert tokens_BT.dtype == torch.int64
