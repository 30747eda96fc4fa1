"""Log-probabilities of answers under a decoder: those of the reference policy, and for estimates of KL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from stamm.base.console import NoProgress, Progress
from stamm.base.errors import ConfigError
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded


class AnswerTokens(Protocol):
    """A prompt with an answer, as token ids."""

    @property
    def ids(self) -> Sequence[int]:
        """Token ids, prompt and answer."""

    @property
    def supervised(self) -> Sequence[bool]:
        """Which ids the model wrote: the tokens whose log-probabilities are summed."""


_BATCH_TOKENS = 16_384


@torch.no_grad()
def completion_log_probs(
    decoder: Decoder,
    answers: Sequence[AnswerTokens],
    batch_tokens: int = _BATCH_TOKENS,
    progress: Progress | None = None,
) -> Tensor:
    """Log-probability of each answer's supervised tokens in nats, float64, shape (len(answers),).

    log_prob[b] = sum over supervised t >= 1 of log softmax(logits(ids[:t]))[ids[t]]

    batch_tokens   of one forward pass, padding included; a longer answer runs alone
    progress       advanced by answers

    Edge     answers of similar length run together, padded on the right, where causal attention does
             not reach. Sums are in float64 (`losses.sequence.sequence_log_probs`).
    Raises   ConfigError for an answer with more inputs than the decoder's max_context, or of fewer
             than two tokens
    Checked  tests/unit/align/test_log_probs.py
    """
    bar = NoProgress() if progress is None else progress
    log_prob_B = torch.zeros(len(answers), dtype=torch.float64)
    num_done = 0
    for rows, tokens_BT, completion_BT in _passes(decoder, answers, batch_tokens):
        sums = decoder.sequence_log_probs(
            tokens_BT[:, :-1], tokens_BT[:, 1:], completion_BT, len(rows)
        )
        log_prob_B[rows] = sums.cpu()
        num_done += len(rows)
        bar.advance(num_done)
    return log_prob_B


@torch.no_grad()
def token_log_probs(decoder: Decoder, answers: Sequence[AnswerTokens]) -> list[list[float]]:
    """Log-probability of every supervised token of each answer, in nats, as `completion_log_probs`."""
    log_probs: list[list[float]] = [[] for _ in answers]
    for rows, tokens_BT, completion_BT in _passes(decoder, answers, _BATCH_TOKENS):
        counted_BT = completion_BT >= 0
        number_BT = (counted_BT.flatten().cumsum(0) - 1).view_as(counted_BT)
        log_prob_N = decoder.sequence_log_probs(
            tokens_BT[:, :-1],
            tokens_BT[:, 1:],
            number_BT.masked_fill(~counted_BT, -1),
            int(counted_BT.sum()),
        )
        lengths = counted_BT.sum(dim=1).tolist()
        for row, part_N in zip(rows, torch.split(log_prob_N.cpu(), lengths), strict=True):
            log_probs[row] = part_N.tolist()
    return log_probs


def _passes(
    decoder: Decoder, answers: Sequence[AnswerTokens], batch_tokens: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of each forward pass: their positions, ids (B, T + 1), and the row of each counted target."""
    lengths = [len(answer.ids) - 1 for answer in answers]
    for number, length in enumerate(lengths):
        if not 1 <= length <= decoder.config.max_context:
            raise ConfigError(
                f"answer {number} has {length + 1} tokens, and the model's max_context is "
                f"{decoder.config.max_context}",
                fix="Prepare the data with a smaller context",
            )
    device = decoder.lm_head.weight.device
    for rows in length_batches(lengths, batch_tokens):
        tokens_BT, _ = padded([answers[row].ids for row in rows])
        completion_BT = torch.full_like(tokens_BT[:, 1:], -1)
        for index, row in enumerate(rows):
            counted = torch.tensor(list(answers[row].supervised)[1:], dtype=torch.bool)
            completion_BT[index, : len(counted)][counted] = index
        yield rows, tokens_BT.to(device), completion_BT.to(device)
