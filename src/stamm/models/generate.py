"""Greedy decoding with a KV cache, and the negative log-likelihood of given tokens.

Both form batches by a fixed rule, so equal requests give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stamm.base.console import NoProgress, Progress
from stamm.base.errors import ConfigError
from stamm.losses.language_model import nll_of_tokens
from stamm.models.attention import KVCache
from stamm.models.decoder import Decoder

GREEDY_ROWS = 64


@torch.no_grad()
def greedy(decoder: Decoder, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """Greedy continuations of `new_tokens` tokens, in the prompts' order.

    token[t] = argmax logits(prompt, token[0] .. token[t-1])

    An end-of-document token does not end a continuation. Prompts of equal length run together,
    GREEDY_ROWS at a time, with a KV cache.

    Raises   ConfigError when a prompt is empty, or when it and its continuation exceed the
             decoder's max_context.
    Checked  tests/unit/models/test_generate.py::test_greedy_equals_recomputing_from_scratch
    """
    _check_lengths(decoder, prompts, new_tokens)
    produced: list[list[int]] = [[] for _ in prompts]
    for rows in _rows_of_equal_length(prompts):
        tokens_BT = torch.tensor([list(prompts[row]) for row in rows])
        for row, continued in zip(rows, _continue(decoder, tokens_BT, new_tokens), strict=True):
            produced[row] = continued
    return produced


@torch.no_grad()
def nats_of_sequences(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    batch_tokens: int,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Negative log-likelihood in nats of every token after the first of each sequence.

    nats[t] = -log softmax(logits(s[0] .. s[t-1]))[s[t]]

    batch_tokens   of one forward pass, padding included; a longer sequence runs alone
    progress       advanced by tokens

    Shapes   one float32 tensor of length len(sequence) - 1 for each, in the order given.
    Edge     shorter rows are padded on the right, where causal attention does not reach.
    Raises   ConfigError when a sequence is empty or has more inputs than max_context.
    Checked  tests/unit/models/test_generate.py::test_nats_do_not_depend_on_the_batch
    """
    _check_lengths(decoder, [sequence[:-1] or sequence for sequence in sequences], 0)
    bar = NoProgress() if progress is None else progress
    device = decoder.lm_head.weight.device
    nats: list[Tensor] = [torch.zeros(0) for _ in sequences]
    done = 0
    for rows in length_batches([len(sequence) for sequence in sequences], batch_tokens):
        lengths = [len(sequences[row]) - 1 for row in rows]
        tokens_BT = torch.zeros(len(rows), max(lengths) + 1, dtype=torch.int64)
        for place, row in enumerate(rows):
            tokens_BT[place, : lengths[place] + 1] = torch.tensor(list(sequences[row]))
        real_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        tokens_BT, real_BT = tokens_BT.to(device), real_BT.to(device)
        hidden_BTD = decoder.model(tokens_BT[:, :-1])
        found = nll_of_tokens(
            hidden_BTD[real_BT], decoder.lm_head.weight, tokens_BT[:, 1:][real_BT]
        )
        for row, part in zip(rows, torch.split(found, lengths), strict=True):
            nats[row] = part
        done += sum(lengths)
        bar.advance(done)
    return nats


def _continue(decoder: Decoder, tokens_BT: Tensor, new_tokens: int) -> list[list[int]]:
    caches = [KVCache() for _ in decoder.model.layers]
    produced = []
    start = 0
    for _ in range(new_tokens):
        hidden_BTD = decoder.model(tokens_BT, caches=caches, start=start)
        start += tokens_BT.shape[1]
        tokens_BT = decoder.lm_head(hidden_BTD[:, -1]).argmax(dim=-1, keepdim=True)
        produced.append(tokens_BT)
    rows: list[list[int]] = torch.cat(produced, dim=1).tolist() if produced else []
    return rows or [[] for _ in range(tokens_BT.shape[0])]


def _rows_of_equal_length(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    by_length: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(row)
    for length in sorted(by_length):
        rows = by_length[length]
        for first in range(0, len(rows), GREEDY_ROWS):
            yield rows[first : first + GREEDY_ROWS]


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of the sequences of each batch: similar lengths, shortest first."""
    batch: list[int] = []
    scored = (row for row in range(len(lengths)) if lengths[row] > 1)
    for row in sorted(scored, key=lambda row: lengths[row]):
        if batch and (len(batch) + 1) * (lengths[row] - 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _check_lengths(decoder: Decoder, inputs: Sequence[Sequence[int]], new_tokens: int) -> None:
    limit = decoder.config.max_context
    for place, tokens in enumerate(inputs):
        if not tokens:
            raise ConfigError(
                f"sequence {place} is empty: nothing precedes its first token",
                fix="Begin it with the begin-of-document token <s>",
            )
        if len(tokens) + new_tokens > limit:
            more = f" and {new_tokens} new ones" if new_tokens else ""
            raise ConfigError(
                f"sequence {place} has {len(tokens)} tokens{more}, more than max_context = {limit}",
                fix="Use fewer new tokens, or cut the sequence",
            )
