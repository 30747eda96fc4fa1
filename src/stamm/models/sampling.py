"""Sample completions in batches, with a key-value cache and a fixed number of slots.

A slot that ends (stop token, length) is given the next request at once, so that short completions do
not wait for long ones. The random number of a token depends on the seed, the request and the token's
place alone, not on the slot or on other requests.

Letters: B slots, S cached tokens, K key-value heads, E head width, V vocabulary.
Checked  tests/unit/models/test_sampling.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.base.hashing import GOLDEN, splitmix64
from stamm.models.attention import KVCache
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import Decoder
from stamm.models.rope import rotation
from stamm.models.sampling_config import SamplingConfig

_GROWTH = 128  # the cache grows by so many tokens at a time


@dataclass(frozen=True)
class Sampled:
    """A completion.

    request    position of its request
    tokens     without the prompt; the stop token included
    log_prob   log-probability of the tokens at temperature 1 without top_k and top_p, in nats
    stopped    True when it ended with a stop token, False at its longest length
    """

    request: int
    tokens: list[int]
    log_prob: float
    stopped: bool


@dataclass
class _Slot:
    request: int
    position: int  # of the token that is fed next
    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0


class _SlotCache(KVCache):
    """Keys and values of all slots in one buffer; each slot writes at its own position."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots
        self.rows = torch.arange(slots)
        self.positions = torch.zeros(slots, dtype=torch.int64)
        self.length = 0

    def fill(self, slot: int, prompt: KVCache) -> None:
        """Copy the keys and values of a prompt to the beginning of a slot."""
        assert prompt.keys is not None and prompt.values is not None
        length = prompt.keys.shape[2]
        self._reserve(length, prompt.keys)
        assert self.keys is not None and self.values is not None
        self.keys[slot, :, :length] = prompt.keys[0]
        self.values[slot, :, :length] = prompt.values[0]

    def extend(self, keys_BKTE: Tensor, values_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Write one token of each slot; the first `length` cached tokens of all slots."""
        self._reserve(self.length, keys_BKTE)
        assert self.keys is not None and self.values is not None
        self.keys[self.rows, :, self.positions] = keys_BKTE[:, :, 0]
        self.values[self.rows, :, self.positions] = values_BKTE[:, :, 0]
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def _reserve(self, length: int, like: Tensor) -> None:
        present = 0 if self.keys is None else self.keys.shape[2]
        if present >= length:
            return
        grown = -(-length // _GROWTH) * _GROWTH
        shape = (self._slots, like.shape[1], grown, like.shape[3])
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = like.new_zeros(shape)
            if old is not None:
                new[:, :, :present] = old
            setattr(self, name, new)


def sample(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    stop_ids: frozenset[int],
    keys: Sequence[int] | None = None,
) -> Iterator[Sampled]:
    """A completion for each prompt, in the order in which they end.

    prompts    token ids, <s> included; equal neighbours are computed once
    stop_ids   tokens that end a completion
    keys       number of each request for its random numbers; None: its position. Two requests with
               equal prompts and keys get the same completion

    Edge       a completion also ends where prompt and completion reach max_context
    Raises     ConfigError for an empty prompt and for one that leaves no room for a token
    """
    numbers = range(len(prompts)) if keys is None else keys
    for place, prompt in enumerate(prompts):
        if not 0 < len(prompt) < decoder.config.max_context:
            raise ConfigError(
                f"prompt {place} has {len(prompt)} tokens, and the model's max_context is "
                f"{decoder.config.max_context}",
                fix="Leave out prompts that are empty or fill the context",
            )
    yield from _Sampler(decoder, prompts, config, stop_ids, numbers).run()


class _Sampler:
    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        stop_ids: frozenset[int],
        keys: Sequence[int],
    ) -> None:
        self._decoder = decoder.merged()
        self._prompts, self._config, self._stop, self._keys = prompts, config, stop_ids, keys
        self._device = decoder.lm_head.weight.device
        slots = min(config.slots, max(len(prompts), 1))
        self._caches = [_SlotCache(slots) for _ in decoder.model.layers]
        self._slots: list[_Slot | None] = [None] * slots
        self._last: tuple[tuple[int, ...], list[KVCache], Tensor] | None = None
        for cache in self._caches:
            cache.rows = cache.rows.to(self._device)

    @torch.no_grad()
    def run(self) -> Iterator[Sampled]:
        """All completions."""
        waiting = iter(range(len(self._prompts)))
        while True:
            for place, slot in enumerate(self._slots):
                while slot is None and (request := next(waiting, None)) is not None:
                    slot, done = self._begin(place, request)
                    if done is not None:
                        yield done
                self._slots[place] = slot
            active = [(place, slot) for place, slot in enumerate(self._slots) if slot is not None]
            if not active:
                return
            logits_BV = self._step()
            drawn = self._draw(logits_BV[[place for place, _ in active]], [s for _, s in active])
            for (place, slot), token, log_prob in zip(active, *drawn, strict=True):
                if done := self._append(slot, token, log_prob):
                    self._slots[place] = None
                    yield done

    def _begin(self, place: int, request: int) -> tuple[_Slot | None, Sampled | None]:
        """Compute a prompt and draw its first token."""
        prompt = tuple(self._prompts[request])
        if self._last is None or self._last[0] != prompt:
            caches = [KVCache() for _ in self._caches]
            tokens_BT = torch.tensor([prompt], device=self._device)
            hidden_BTD = self._decoder.model(tokens_BT, caches=caches)
            self._last = prompt, caches, self._decoder.lm_head(hidden_BTD[:, -1])
        for cache, filled in zip(self._caches, self._last[1], strict=True):
            cache.fill(place, filled)
        slot = _Slot(request, position=len(prompt))
        (token,), (log_prob,) = self._draw(self._last[2], [slot])
        done = self._append(slot, token, log_prob)
        return (None, done) if done else (slot, None)

    def _append(self, slot: _Slot, token: int, log_prob: float) -> Sampled | None:
        """Add a token to a slot; the completion when it ends there."""
        slot.tokens.append(token)
        slot.log_prob += log_prob
        stopped = token in self._stop
        longest = min(
            self._config.max_new_tokens,
            self._decoder.config.max_context - len(self._prompts[slot.request]),
        )
        if not stopped and len(slot.tokens) < longest:
            return None
        return Sampled(slot.request, slot.tokens, slot.log_prob, stopped)

    def _step(self) -> Tensor:
        """Logits after the last token of every slot, (B, V); those of free slots mean nothing."""
        # A free slot computes token 0 at position 0.
        token_B = torch.tensor([[slot.tokens[-1]] if slot else [0] for slot in self._slots])
        position_B = torch.tensor([slot.position if slot else 0 for slot in self._slots])
        length = int(position_B.max()) + 1
        dtype = self._decoder.lm_head.weight.dtype
        position_B = position_B.to(self._device)
        cosine_BE, sine_BE = rotation(self._decoder.model.frequencies, position_B, dtype)
        seen_S = torch.arange(length, device=self._device)
        mask_BS = torch.zeros(len(self._slots), length, dtype=dtype, device=self._device)
        mask_BS.masked_fill_(seen_S[None] > position_B[:, None], -math.inf)
        for cache in self._caches:
            cache.positions, cache.length = position_B, length
        attention = AttentionInputs((cosine_BE[:, None], sine_BE[:, None]), mask_BS[:, None, None])
        hidden_BTD = self._decoder.model(
            token_B.to(self._device), caches=list(self._caches), attention=attention
        )
        for slot in self._slots:
            if slot is not None:
                slot.position += 1
        logits_BV: Tensor = self._decoder.lm_head(hidden_BTD[:, -1])
        return logits_BV

    def _draw(self, logits_BV: Tensor, slots: Sequence[_Slot]) -> tuple[list[int], list[float]]:
        """A token for each row, and its log-probability at temperature 1."""
        logits_BV = logits_BV.float()
        config = self._config
        if config.temperature == 0:
            token_B = logits_BV.argmax(-1)
        else:
            uniform_B = torch.from_numpy(self._uniform(slots)).to(logits_BV.device)
            token_B = draw(logits_BV, uniform_B, config.temperature, config.top_k, config.top_p)
        chosen_B = logits_BV.gather(1, token_B[:, None])[:, 0]
        log_prob_B = chosen_B - logits_BV.logsumexp(-1)
        return token_B.tolist(), log_prob_B.tolist()

    def _uniform(self, slots: Sequence[_Slot]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """A number in [0, 1) for each slot, of its request and the place of its next token."""
        request = np.array([self._keys[slot.request] for slot in slots], dtype=np.uint64)
        place = np.array([len(slot.tokens) for slot in slots], dtype=np.uint64)
        seed = splitmix64(np.array([self._config.seed], dtype=np.uint64))
        with np.errstate(over="ignore"):
            mixed = splitmix64(splitmix64(seed + request * GOLDEN) + place * GOLDEN)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """The token of each row at which the cumulative probability first exceeds `uniform_B`, int64 (B,).

    logits_BV   float32, (B, V)
    uniform_B   float64 in [0, 1), (B,)

    Probabilities are summed in float64. With top_k or top_p tokens are ordered by falling logit, and
    among equal logits by their number.
    """
    scaled_BV = logits_BV.double() / temperature
    if top_k == 0 and top_p == 1.0:
        return _invert(scaled_BV.softmax(-1), uniform_B)
    ordered_BV, index_BV = scaled_BV.sort(dim=-1, descending=True, stable=True)
    probability_BV = ordered_BV.softmax(-1)
    before_BV = probability_BV.cumsum(-1) - probability_BV
    kept_BV = before_BV < top_p
    if top_k:
        kept_BV[:, top_k:] = False
    kept_BV[:, 0] = True
    place_B = _invert(probability_BV * kept_BV, uniform_B)
    return index_BV.gather(1, place_B[:, None])[:, 0]


def _invert(probability_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first place whose cumulative share exceeds `uniform_B`; never one of probability 0."""
    cumulative_BV = probability_BV.cumsum(-1)
    total_B = cumulative_BV[:, -1:]
    place_B = torch.searchsorted(cumulative_BV, uniform_B[:, None] * total_B, right=True)
    last_B = (probability_BV > 0).to(torch.int8).cumsum(-1).argmax(-1, keepdim=True)
    return torch.minimum(place_B, last_B)[:, 0]
