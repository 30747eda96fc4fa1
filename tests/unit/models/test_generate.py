"""Greedy continuation and token costs equal what one pass over each sequence gives."""

from __future__ import annotations

import pytest
import torch

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.models import generate
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.generate import greedy, nats_of_sequences


def decoder(ffn: PlainFFN | GatedFFN | None = None) -> Decoder:
    # a large init_std keeps the best two logits apart, so that rounding decides nothing
    config = DecoderConfig(
        vocab_size=61,
        d_model=32,
        num_layers=2,
        ffn=ffn or PlainFFN(width=48),
        max_context=40,
        init_std=0.3,
    )
    return build_decoder(config, seed=5)


def draw(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(61, (length,), generator=generator).tolist()


@torch.no_grad()
def from_scratch(model: Decoder, prompt: list[int], new_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("ffn", [PlainFFN(width=48), GatedFFN(width=32)])
def test_greedy_equals_recomputing_from_scratch(ffn: PlainFFN | GatedFFN) -> None:
    model = decoder(ffn)
    prompts = [draw(length, seed) for seed, length in enumerate((1, 7, 3, 7, 12, 1, 7))]
    expected = [from_scratch(model, prompt, 15) for prompt in prompts]
    assert greedy(model, prompts, 15) == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


def test_greedy_splits_large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    prompts = [draw(4, seed) for seed in range(5)]
    whole = greedy(model, prompts, 6)
    monkeypatch.setattr(generate, "GREEDY_ROWS", 2)
    assert greedy(model, prompts, 6) == whole


def test_greedy_of_nothing() -> None:
    assert greedy(decoder(), [], 5) == []
    assert greedy(decoder(), [[1], [2, 3]], 0) == [[], []]


def test_greedy_stays_in_the_context() -> None:
    model = decoder()
    assert len(greedy(model, [draw(30, 0)], 10)[0]) == 10
    with pytest.raises(ConfigError, match=r"sequence 1 has 31 tokens and 10 new ones.*= 40.*fewer"):
        greedy(model, [draw(5, 0), draw(31, 0)], 10)
    with pytest.raises(ConfigError, match=r"sequence 0 is empty.*<s>"):
        greedy(model, [[]], 1)


def test_nats_are_those_of_log_softmax() -> None:
    model = decoder()
    sequence = draw(20, 1)
    (found,) = nats_of_sequences(model, [sequence], 1000)
    with torch.no_grad():
        logits = model(torch.tensor([sequence]))[0, :-1].double()
    expected = -logits.log_softmax(-1)[torch.arange(19), torch.tensor(sequence[1:])]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 13, 40, 10_000])
def test_nats_do_not_depend_on_the_batch(batch_tokens: int) -> None:
    model = decoder()
    sequences = [draw(length, seed) for seed, length in enumerate((9, 2, 1, 41, 5, 17, 5))]
    found = nats_of_sequences(model, sequences, batch_tokens)
    assert [len(part) for part in found] == [8, 1, 0, 40, 4, 16, 4]
    for sequence, part in zip(sequences, found, strict=True):
        (alone,) = nats_of_sequences(model, [sequence], 10_000)
        torch.testing.assert_close(part, alone, rtol=1e-5, atol=1e-5)


def test_nats_refuse_what_the_model_cannot_see() -> None:
    with pytest.raises(ConfigError, match=r"sequence 0 has 41 tokens, more than max_context = 40"):
        nats_of_sequences(decoder(), [draw(42, 0)], 100)
    with pytest.raises(ConfigError, match="sequence 1 is empty"):
        nats_of_sequences(decoder(), [[1, 2], []], 100)


def test_nats_tell_how_far_they_are() -> None:
    class Listener(NoProgress):
        heard: list[float]

        def advance(self, done: float, note: str = "", share: float | None = None) -> None:
            self.heard.append(done)

    listener = Listener()
    listener.heard = []
    nats_of_sequences(decoder(), [draw(5, 0), draw(9, 1)], 4, listener)
    assert listener.heard == [4, 12]
