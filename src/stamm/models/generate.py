"""Greedy decoding with a KV cache, and the negative log-likelihood of given tokens.

Both form batches by a fixed rule, so equal requests give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stamm.base.console import NoProgress, Progress
from stamm.base.errors import ConfigError
from stamm.losses.language_model import nll_of_tokens
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig

GREEDY_ROWS = 64


def greedy(decoder: Decoder, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """Greedy continuations of `new_tokens` tokens, in the prompts' order: sampling at temperature 0.

    token[t] = argmax logits(prompt, token[0] .. token[t-1])

    An end-of-document token does not end a continuation. GREEDY_ROWS prompts run together.

    Raises   ConfigError when a prompt is empty, or when it and its continuation exceed the
             decoder's max_context.
    Checked  tests/unit/models/test_generate.py::test_greedy_equals_recomputing_from_scratch
    """
    _check_lengths(decoder, prompts, new_tokens)
    produced: list[list[int]] = [[] for _ in prompts]
    if new_tokens:
        config = SamplingConfig(temperature=0.0, max_new_tokens=new_tokens, slots=GREEDY_ROWS)
        for done in sample(decoder, prompts, config, frozenset()):
            produced[done.request] = done.tokens
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
    inputs = [len(sequence) - 1 for sequence in sequences]
    for rows in length_batches(inputs, batch_tokens):
        lengths = [inputs[row] for row in rows]
        tokens_BT, own_BT = (x.to(device) for x in padded([sequences[row] for row in rows]))
        hidden_BTD, real_BT = decoder.model(tokens_BT[:, :-1]), own_BT[:, 1:]
        nll = nll_of_tokens(hidden_BTD[real_BT], decoder.lm_head.weight, tokens_BT[:, 1:][real_BT])
        for row, part in zip(rows, torch.split(nll, lengths), strict=True):
            nats[row] = part
        done += sum(lengths)
        bar.advance(done)
    return nats


def _check_lengths(decoder: Decoder, inputs: Sequence[Sequence[int]], new_tokens: int) -> None:
    limit = decoder.config.max_context
    for index, tokens in enumerate(inputs):
        if not tokens:
            raise ConfigError(
                f"sequence {index} is empty: nothing precedes its first token",
                fix="Begin it with the begin-of-document token <s>",
            )
        if len(tokens) + new_tokens > limit:
            more = f" and {new_tokens} new ones" if new_tokens else ""
            raise ConfigError(
                f"sequence {index} has {len(tokens)} tokens{more}, more than max_context = {limit}",
                fix="Use fewer new tokens, or cut the sequence",
            )
