"""Generate one sequence token by token; the keys and values of an unchanged beginning are kept.

The tokens are those of `stamm.models.sampling.sample`: same random numbers, same loop.

Letters: B batch (1), T new tokens, D model.
Checked  tests/unit/models/test_streaming.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stamm.models.attention import KVCache
from stamm.models.decode_step import DecodeStep, PromptStates
from stamm.models.decoder import Decoder
from stamm.models.sampling import Decoding, Start, check_prompt
from stamm.models.sampling_config import SamplingConfig

_CHUNK = 512  # tokens of a prompt that are computed at once: between chunks it can be interrupted


class StreamingGenerator:
    """Generates the tokens after a prompt, one at a time; may be stopped between any two.

    Memory   the keys and values of the last sequence twice, and what `DecodeStep` takes for one row
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder.for_decoding()
        self._step: DecodeStep | None = None
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
        check_prompt(self._decoder, prompt, "the prompt")
        starts = iter([Start(0, key, self._prefill(prompt), 0)])
        cached, answer = self._cached, list[int]()
        if self._step is None:
            self._step = DecodeStep(self._decoder, 1)
        step = self._step
        try:
            for (token,), _ in Decoding(self._decoder, step, starts, 1, config, stop_ids).steps():
                answer.append(token)
                yield token
        except GeneratorExit:
            pass  # the caller needs no more tokens
        except BaseException:
            self._step = None  # interrupted anywhere
            raise
        if cached is self._cached:  # no other prompt was computed since
            self._keep(step, answer[:-1])

    def _prefill(self, prompt: Sequence[int]) -> PromptStates:
        """A computed prompt; its tokens that are cached already are not computed again."""
        # the last token is always computed: its logits are needed
        pairs = enumerate(zip(self._cached, prompt, strict=False))
        same = next((position for position, (a, b) in pairs if a != b), len(self._cached))
        kept = min(same, len(prompt) - 1)
        self._cached = self._cached[:kept]
        for start in range(kept, len(prompt), _CHUNK):
            hidden_BTD = self._compute(prompt[start : start + _CHUNK])
        logits_BV = self._decoder.lm_head(hidden_BTD[:, -1])
        return PromptStates.of(self._caches, logits_BV, [len(prompt)])

    def _compute(self, tokens: Sequence[int]) -> Tensor:
        """Hidden states of `tokens`, which follow the cached ones, (1, T, D)."""
        start = len(self._cached)
        # Cut off what another prompt, or an interrupted pass in some of the layers, has left.
        for cache in self._caches:
            if cache.keys is not None and cache.values is not None:
                cache.keys, cache.values = cache.keys[:, :, :start], cache.values[:, :, :start]
        tokens_BT = torch.tensor([list(tokens)], device=self._decoder.lm_head.weight.device)
        hidden_BTD: Tensor = self._decoder.model(tokens_BT, caches=self._caches, start=start)
        self._cached += tokens
        return hidden_BTD

    def _keep(self, step: DecodeStep, tokens: Sequence[int]) -> None:
        """Keep the keys and values of the newest tokens of `step`, which follow the cached ones."""
        for cache, states in zip(self._caches, step.newest(0, len(tokens)), strict=True):
            cache.extend(*states)
        self._cached += tokens
