"""Streaming gives the tokens of batched sampling, whatever is cached and wherever it was stopped."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stamm.base.errors import ConfigError
from stamm.models import streaming
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decode_layer import _TorchLayer
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig
from stamm.models.streaming import StreamingGenerator


def decoder() -> Decoder:
    config = DecoderConfig(
        vocab_size=61,
        d_model=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn=PlainFFN(width=48),
        max_context=80,
        init_std=0.3,
    )
    return build_decoder(config, seed=5).double()


def prompt(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(61, (length,), generator=generator).tolist()


def sampled(given: list[int], config: SamplingConfig, stop: frozenset[int], key: int) -> list[int]:
    (found,) = sample(decoder(), [given], config, stop, keys=[key])
    return found.tokens


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"temperature": 1.3, "top_p": 0.8}, {"top_k": 5}]
)
def test_the_tokens_are_those_of_batched_sampling(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_CHUNK", 4)
    config = SamplingConfig(max_new_tokens=20, seed=3, **options)
    stream, stop = StreamingGenerator(decoder()), frozenset({7, 8})
    first = prompt(11)
    turns = [first, first + prompt(9, 2), first[:5] + prompt(30, 3)]
    for key, given in enumerate(turns):
        expected = sampled(given, config, stop, key)
        assert list(stream.generate(given, config, stop, key)) == expected


def test_it_can_be_stopped_and_continued_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SamplingConfig(max_new_tokens=12)
    stream = StreamingGenerator(decoder())
    given = prompt(10)
    expected = sampled(given, config, frozenset(), 0)
    assert list(itertools.islice(stream.generate(given, config, frozenset()), 4)) == expected[:4]
    # interrupted between two layers: of the prompt's pass, whose first cache is longer then, or of a step
    for owner, name, call in ((streaming.KVCache, "extend", 1), (_TorchLayer, "__call__", 5)):
        inner, calls = getattr(owner, name), itertools.count()

        def interrupted(
            self: Any, *given: Any, inner: Any = inner, calls: Any = calls, call: int = call
        ) -> Any:
            if next(calls) == call:
                raise KeyboardInterrupt
            return inner(self, *given)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, interrupted)
            list(stream.generate(given, config, frozenset()))
        assert list(stream.generate(given, config, frozenset())) == expected


def test_two_answers_at_once_are_not_confused() -> None:
    config = SamplingConfig(max_new_tokens=6)
    stream = StreamingGenerator(decoder())
    early = stream.generate(prompt(10), config, frozenset())
    next(early)
    expected = sampled(prompt(12, 2), config, frozenset(), 0)
    assert list(stream.generate(prompt(12, 2), config, frozenset())) == expected
    early.close()
    assert list(stream.generate(prompt(12, 2), config, frozenset())) == expected


def test_an_unchanged_beginning_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, config = StreamingGenerator(decoder()), SamplingConfig(max_new_tokens=3)
    given = prompt(20)
    answer = list(stream.generate(given, config, frozenset()))
    lengths: list[int] = []
    inner = stream._compute
    monkeypatch.setattr(
        stream, "_compute", lambda tokens: (lengths.append(len(tokens)), inner(tokens))[1]
    )
    list(stream.generate([*given, *answer, 3, 4], config, frozenset()))
    assert lengths == [3]  # the answer's last token was drawn, never computed


def test_it_ends_where_the_context_is_full() -> None:
    stream, config = StreamingGenerator(decoder()), SamplingConfig(max_new_tokens=50)
    assert len(list(stream.generate(prompt(75), config, frozenset()))) == 5
    for given in ([], prompt(80)):
        with pytest.raises(ConfigError, match="max_context is 80"):
            list(stream.generate(given, config, frozenset()))
