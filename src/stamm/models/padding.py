"""Batches of token sequences of similar length, padded on the right, where causal attention does not reach.

Letters: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions of the sequences of each batch: similar lengths, shortest first, empty ones left out.

    batch_tokens   of one batch, padding included; a longer sequence is alone
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[row] > batch_tokens:
            yield batch
            batch = []
        if lengths[row] > 0:
            batch.append(row)
    if batch:
        yield batch


def padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids, int64 (B, T), with 0 behind the end of a sequence, and which are its own, bool (B, T)."""
    lengths = [len(sequence) for sequence in sequences]
    tokens_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens_BT[row, : lengths[row]] = torch.tensor(list(sequence))
    return tokens_BT, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
