"""The decoding loop: completions in batches, sampled or greedy, with a KV cache and a number of slots.

`sample`, greedy decoding (`models.generate`), chats (`models.streaming`) and the audit's grid run it.

A slot that ends (stop token, length) is given the next request at the next step, so that short
completions do not wait for long ones. Prompts are computed ahead, several in a forward pass; equal
neighbours once.

The random number of a token depends on the seed, the request's key and the token's position alone, not
on the slot or on other requests. Logits are not equal to the bit for every batch: matrix products
and softmax sum in an order that depends on the number of rows and on the longest sequence. A
completion can therefore differ between batches where a random number falls within rounding of the
border between two tokens (in float32 about one token in a million). The same requests with the same
settings and number of threads give the same bits on one machine, while its measurement in
`decode_kernel` is kept.

Letters: B slots, P prompts, V vocabulary, T positions of new tokens.
Checked  tests/unit/models/test_sampling.py
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.base.hashing import GOLDEN, splitmix64
from stamm.models.decode_step import DecodeStep, PromptStates, run_prompts
from stamm.models.decoder import Decoder
from stamm.models.sampling_config import SamplingConfig

_PROMPT_TOKENS = 4096  # of a forward pass over prompts, padding included


@dataclass(frozen=True)
class Sampled:
    """A completion.

    request            position of its request
    tokens             without the prompt; the stop token included
    log_prob           log-probability of the tokens at temperature 1 without top_k and top_p, in nats
    sampled_log_prob   the same under the distribution that they were drawn from: with temperature,
                       top_k and top_p. 0 at temperature 0; None where it is not known
    stopped            True when it ended with a stop token, False at its longest length
    """

    request: int
    tokens: list[int]
    log_prob: float
    sampled_log_prob: float | None
    stopped: bool


@dataclass(frozen=True)
class Start:
    """A computed prompt that a completion continues.

    request   position of the request
    key       number of the request for its random numbers
    prompt    position of the prompt in `states`
    """

    request: int
    key: int
    states: PromptStates
    prompt: int


@dataclass
class _Slot:
    request: int
    longest: int
    tokens: list[int] = field(default_factory=list)


def sample(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    stop_ids: frozenset[int],
    keys: Sequence[int] | None = None,
) -> Iterator[Sampled]:
    """A completion for each prompt, in the order in which they end; at temperature 0 the greedy one.

    prompts    token ids, <s> included; equal neighbours are computed once
    stop_ids   tokens that end a completion
    keys       number of each request for its random numbers; None: its position. Two requests with
               equal prompts and keys get the same completion

    Memory     keys and values of `config.slots` sequences, and those of the prompts of one forward
               pass, which has at most `config.slots` prompts and, if more than one, 4096 tokens
    Edge       a completion also ends where prompt and completion reach max_context
    Raises     ConfigError for an empty prompt and for one that leaves no room for a token
    """
    for index, prompt in enumerate(prompts):
        check_prompt(decoder, prompt, f"prompt {index}")
    numbers = range(len(prompts)) if keys is None else keys
    if prompts:
        decoder = decoder.for_decoding()
        starts = _computed(decoder, prompts, numbers, config.slots)
        yield from sample_from(decoder, starts, len(prompts), config, stop_ids)


def sample_from(
    decoder: Decoder,
    starts: Iterable[Start],
    count: int,
    config: SamplingConfig,
    stop_ids: frozenset[int],
) -> Iterator[Sampled]:
    """`sample` after `count` computed prompts; the decoder is one `for_decoding`."""
    step = DecodeStep(decoder, min(config.slots, count))
    for _, ended in Decoding(decoder, step, iter(starts), count, config, stop_ids).steps():
        yield from ended


def check_prompt(decoder: Decoder, prompt: Sequence[int], name: str) -> None:
    """Raise ConfigError for a prompt that is empty or leaves no room for a token in the context."""
    if not 0 < len(prompt) < decoder.config.max_context:
        raise ConfigError(
            f"{name} has {len(prompt)} tokens, and the model's max_context is "
            f"{decoder.config.max_context}",
            fix="Leave out prompts that are empty or fill the context",
        )


def _computed(
    decoder: Decoder, prompts: Sequence[Sequence[int]], keys: Sequence[int], most: int
) -> Iterator[Start]:
    """The starts of prompts, up to `most` of which are computed in one pass when the first is needed."""
    waiting = deque(
        (prompt, list(requests))
        for prompt, requests in itertools.groupby(
            range(len(prompts)), key=lambda request: tuple(prompts[request])
        )
    )
    while waiting:
        groups = [waiting.popleft()]
        longest = len(groups[0][0])
        while waiting and len(groups) < most:
            longest = max(longest, len(waiting[0][0]))
            if longest * (len(groups) + 1) > _PROMPT_TOKENS:
                break
            groups.append(waiting.popleft())
        states = run_prompts(decoder, [prompt for prompt, _ in groups])
        ready = deque(
            Start(request, keys[request], states, index)
            for index, (_, requests) in enumerate(groups)
            for request in requests
        )
        del states  # in memory until the last of these begins
        while ready:
            yield ready.popleft()


class Decoding:
    """The decoding loop: each step adds a token to every sequence.

    decoder   without structured matrices (`merged`)
    step      of the decoder; its rows are the slots, and sequences in them are given up
    starts    of `count` requests; none is empty or fills the context
    """

    def __init__(
        self,
        decoder: Decoder,
        step: DecodeStep,
        starts: Iterator[Start],
        count: int,
        config: SamplingConfig,
        stop_ids: frozenset[int],
    ) -> None:
        self._starts, self._waiting = starts, count
        self._config, self._stop, self._step = config, stop_ids, step
        self._max_context = decoder.config.max_context
        rows = len(step.lengths)
        for row in range(rows):
            step.free(row)
        self._slots: list[_Slot | None] = [None] * rows
        like = decoder.lm_head.weight
        self._logits_BV = like.new_zeros(rows, decoder.config.vocab_size)
        self._place_B = torch.zeros(rows, dtype=torch.int64, device=like.device)
        self._uniform_BT = torch.zeros(
            rows, config.max_new_tokens, dtype=torch.float64, device=like.device
        )
        self._log_prob_B2 = torch.zeros(rows, 2, dtype=torch.float64, device=like.device)

    def steps(self) -> Iterator[tuple[list[int], list[Sampled]]]:
        """After each step: the new token of each slot, and the completions that end with it."""
        while self._fill():
            with torch.no_grad():
                token_B, log_prob_B2 = self._draw()
            self._log_prob_B2 += log_prob_B2
            self._place_B += 1
            tokens = token_B.tolist()
            yield tokens, self._append(tokens)
            if any(self._slots):
                self._logits_BV = self._step(self._shrink(token_B))

    def _fill(self) -> bool:
        """Give free slots the next requests; whether any slot is in use."""
        for row, slot in enumerate(self._slots):
            if slot is None and self._waiting:
                self._waiting -= 1
                self._begin(row, next(self._starts))
        return any(self._slots)

    def _begin(self, row: int, start: Start) -> None:
        room = self._max_context - start.states.lengths[start.prompt]
        longest = min(self._config.max_new_tokens, room)
        self._slots[row] = _Slot(start.request, longest)
        self._step.fill(row, start.states, start.prompt)
        self._logits_BV[row] = start.states.logits_PV[start.prompt]
        self._place_B[row] = 0
        self._log_prob_B2[row] = 0.0
        if self._config.temperature > 0:
            uniform = uniforms(self._config.seed, start.key, longest)
            self._uniform_BT[row, :longest] = torch.from_numpy(uniform)

    def _draw(self) -> tuple[Tensor, Tensor]:
        """A token for each slot, and its log-probabilities: at temperature 1, and as drawn, (B, 2)."""
        config, logits_BV = self._config, self._logits_BV.float()
        if config.temperature == 0:
            token_B = logits_BV.argmax(-1)
            log_prob_B = _log_prob(logits_BV, token_B)
            return token_B, torch.stack((log_prob_B, torch.zeros_like(log_prob_B)), dim=1)
        uniform_B = self._uniform_BT.gather(1, self._place_B[:, None])[:, 0]
        token_B, drawn_B = draw(
            logits_BV, uniform_B, config.temperature, config.top_k, config.top_p
        )
        whole = config.temperature == 1 and config.top_k == 0 and config.top_p == 1.0
        log_prob_B = drawn_B if whole else _log_prob(logits_BV, token_B)
        return token_B, torch.stack((log_prob_B, drawn_B), dim=1)

    def _append(self, tokens: Sequence[int]) -> list[Sampled]:
        """Add a token to each slot; the completions that end there, whose slots become free."""
        ended = []
        for row, (slot, token) in enumerate(zip(self._slots, tokens, strict=True)):
            if slot is None:
                continue
            slot.tokens.append(token)
            stopped = token in self._stop
            if stopped or len(slot.tokens) == slot.longest:
                self._slots[row] = None
                self._step.free(row)
                self._place_B[row] = 0
                log_prob, drawn = self._log_prob_B2[row].tolist()
                ended.append(Sampled(slot.request, slot.tokens, log_prob, drawn, stopped))
        return ended

    def _shrink(self, token_B: Tensor) -> Tensor:
        """Drop free slots when no request waits and at most half are in use; the others' tokens."""
        used = [row for row, slot in enumerate(self._slots) if slot is not None]
        if self._waiting or not used or 2 * len(used) > len(self._slots):
            return token_B
        kept = torch.tensor(used, device=token_B.device)
        self._slots = [self._slots[row] for row in used]
        self._step.keep(used)
        self._place_B, self._uniform_BT = self._place_B[kept], self._uniform_BT[kept]
        self._log_prob_B2 = self._log_prob_B2[kept]
        return token_B[kept]


def uniforms(seed: int, key: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The numbers in [0, 1) that draw the first `count` tokens of the request with this key."""
    with np.errstate(over="ignore"):
        request = splitmix64(np.array([seed], dtype=np.uint64)) + np.uint64(key) * GOLDEN
        mixed = splitmix64(splitmix64(request) + np.arange(count, dtype=np.uint64) * GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """A token for each row, int64 (B,), and its log-probability in nats, float64 (B,).

    The token is the one at which the cumulative probability first exceeds `uniform_B`; never one of
    probability 0. The log-probability is that of the distribution drawn from.

    logits_BV   float32, (B, V)
    uniform_B   float64 in [0, 1), (B,)

    Probabilities are computed in float32 and summed in float64. With top_k or top_p tokens are
    ordered by falling logit.
    """
    index_BV = None
    if 0 < top_k < logits_BV.shape[1]:
        logits_BV, index_BV = logits_BV.topk(top_k, dim=-1)
    elif top_p < 1.0:
        logits_BV, index_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    scaled_BV = logits_BV - logits_BV.amax(-1, keepdim=True)
    if temperature != 1.0:
        scaled_BV /= temperature
    weight_BV = scaled_BV.exp()
    cumulative_BV = weight_BV.cumsum(-1, dtype=torch.float64)
    if top_p < 1.0:
        dropped_BV = cumulative_BV - weight_BV >= top_p * cumulative_BV[:, -1:]
        dropped_BV[:, 0] = False
        cumulative_BV = weight_BV.masked_fill_(dropped_BV, 0.0).cumsum(-1, dtype=torch.float64)
    total_B1 = cumulative_BV[:, -1:]
    # Below the total, so that a token of positive probability follows.
    threshold_B1 = torch.minimum(uniform_B[:, None] * total_B1, total_B1.nextafter(-total_B1))
    place_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    place_B1 = place_B1.clamp_(max=cumulative_BV.shape[1] - 1)  # NaN is above all
    log_prob_B = (scaled_BV.gather(1, place_B1).double() - total_B1.log())[:, 0]
    return (place_B1 if index_BV is None else index_BV.gather(1, place_B1))[:, 0], log_prob_B


def _log_prob(logits_BV: Tensor, token_B: Tensor) -> Tensor:
    """Log-probability of one token of each row, float64 (B,)."""
    chosen_B = logits_BV.gather(1, token_B[:, None])[:, 0]
    return (chosen_B - logits_BV.logsumexp(-1)).double()
