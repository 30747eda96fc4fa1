"""Generate one sequence token by token; the keys and values of an unchanged beginning are kept.

The tokens are those of `stamm.models.sampling.sample`: same random numbers, same rule.

Letters: B batch (1), T new tokens, S all tokens, V vocabulary.
Checked  tests/unit/models/test_streaming.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.models.attention import KVCache
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import Decoder
from stamm.models.rope import rotation
from stamm.models.sampling import draw, uniforms
from stamm.models.sampling_config import SamplingConfig

_CHUNK = 512  # tokens of a prompt that are computed at once: between chunks it can be interrupted


class StreamingGenerator:
    """Generates the tokens after a prompt, one at a time; may be stopped between any two."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder.merged()
        self._caches = [KVCache() for _ in decoder.model.layers]
        self._cached: list[int] = []

    @property
    def max_context(self) -> int:
        """The longest sequence of the model, prompt and answer together."""
        return self._decoder.config.max_context

    @torch.no_grad()
    def generate(
        self, prompt: Sequence[int], config: SamplingConfig, stop_ids: frozenset[int], key: int = 0
    ) -> Iterator[int]:
        """Tokens after `prompt`, up to a stop token (included), max_new_tokens or the full context.

        key      number of the request for its random numbers, as in `sample`

        Raises   ConfigError for a prompt that is empty or fills the context.
        """
        if not 0 < len(prompt) < self.max_context:
            raise ConfigError(
                f"the prompt has {len(prompt)} tokens, and the model's max_context is "
                f"{self.max_context}"
            )
        count = min(config.max_new_tokens, self.max_context - len(prompt))
        uniform_T = torch.from_numpy(uniforms(config.seed, key, count))
        token = _drawn(self._prefill(prompt), config, uniform_T[:1])
        yield token
        for place in range(1, count):
            if token in stop_ids:
                return
            token = _drawn(self._step([token]), config, uniform_T[place : place + 1])
            yield token

    def _prefill(self, prompt: Sequence[int]) -> Tensor:
        """Logits after a prompt; its tokens that are cached already are not computed again."""
        # the last token is always computed: its logits are needed
        pairs = enumerate(zip(self._cached, prompt, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), len(self._cached))
        kept = min(same, len(prompt) - 1)
        del self._cached[kept:]
        for start in range(kept, len(prompt), _CHUNK):
            logits_BV = self._step(prompt[start : start + _CHUNK])
        return logits_BV

    def _step(self, tokens: Sequence[int]) -> Tensor:
        """Logits after `tokens`, which follow the cached ones; float32, shape (1, V)."""
        model, weight = self._decoder.model, self._decoder.lm_head.weight
        start, stop = len(self._cached), len(self._cached) + len(tokens)
        position_T = torch.arange(start, stop, device=weight.device)
        seen_S = torch.arange(stop, device=weight.device)
        mask_TS = torch.zeros(len(tokens), stop, dtype=weight.dtype, device=weight.device)
        mask_TS.masked_fill_(seen_S[None] > position_T[:, None], -math.inf)
        angles = rotation(model.frequencies, position_T, weight.dtype)
        tokens_BT = torch.tensor([list(tokens)], device=weight.device)
        # Cut off what another prompt, or an interrupted step in some of the layers, has left.
        for cache in self._caches:
            if cache.keys is not None and cache.values is not None:
                cache.keys, cache.values = cache.keys[:, :, :start], cache.values[:, :, :start]
        attention = AttentionInputs(angles, mask_TS[None, None])
        hidden_BTD = model(tokens_BT, caches=self._caches, attention=attention)
        self._cached += tokens
        logits_BV: Tensor = self._decoder.lm_head(hidden_BTD[:, -1])
        return logits_BV.float()


def _drawn(logits_BV: Tensor, config: SamplingConfig, uniform_B: Tensor) -> int:
    """The token that is drawn with one random number."""
    if config.temperature == 0:
        return int(logits_BV.argmax(-1))
    uniform_B = uniform_B.to(logits_BV.device)
    token_B, _ = draw(logits_BV, uniform_B, config.temperature, config.top_k, config.top_p)
    return int(token_B)
