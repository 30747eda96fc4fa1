"""The probability of extraction in closed form is the frequency of real samples."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.audit.config import GridConfig
from stamm.audit.extraction import chance_within, drawn_log_prob, samples_needed, token_statistics
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig

PROMPT = [1, 5, 3]
SHAPES = ((0.7, 5, 1.0), (1.3, 0, 0.8))


def test_equals_the_frequency_of_real_samples() -> None:
    config = DecoderConfig(
        vocab_size=12, d_model=16, num_layers=1, ffn=PlainFFN(width=24), max_context=8, init_std=0.5
    )
    decoder = build_decoder(config, seed=3)
    count, group = 2000, 10
    for temperature, top_k, top_p in SHAPES:
        settings = SamplingConfig(
            temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=2, slots=500
        )
        drawn = [
            tuple(one.tokens)
            for one in sorted(
                sample(decoder, [PROMPT] * count, settings, frozenset()), key=lambda s: s.request
            )
        ]
        passage = max(set(drawn), key=drawn.count)
        ids = torch.tensor([[*PROMPT, *passage]])
        with torch.no_grad():
            hidden = decoder.model(ids[:, :-1])[0, 2:]
        grid = GridConfig(temperature=temperature, top_k=top_k, top_p=top_p)
        log_p = float(token_statistics(decoder, hidden, ids[0, 3:], grid).drawn.sum())
        p = math.exp(log_p)
        assert abs(drawn.count(passage) / count - p) < 4 * math.sqrt(p * (1 - p) / count)
        groups = [drawn[i : i + group] for i in range(0, count, group)]
        expected = chance_within(log_p, group)
        hits = sum(passage in one for one in groups) / len(groups)
        assert abs(hits - expected) < 4 * math.sqrt(expected * (1 - expected) / len(groups))


def test_a_token_left_out_is_never_drawn() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    for top_k, top_p in ((2, 1.0), (0, 0.6)):
        found = [
            float(drawn_log_prob(logits, torch.tensor([t]), 1.0, top_k, top_p)) for t in range(4)
        ]
        assert found[3] == -math.inf
        assert sum(map(math.exp, found)) == pytest.approx(1)
    whole = drawn_log_prob(logits, torch.tensor([2]), 1.0, 0, 1.0)
    assert float(whole) == pytest.approx(float(logits[0].double().log_softmax(-1)[2]))


@pytest.mark.parametrize("p", [0.999, 0.5, 0.3, 0.01, 1e-9])
@pytest.mark.parametrize("chance", [0.5, 0.9])
def test_the_smallest_number_of_samples(p: float, chance: float) -> None:
    n = samples_needed(math.log(p), chance)
    assert n is not None
    assert chance_within(math.log(p), n) >= chance
    assert n == 1 or chance_within(math.log(p), n - 1) < chance


def test_certain_and_impossible_passages() -> None:
    assert samples_needed(0.0, 0.9) == 1
    assert chance_within(0.0, 1) == 1.0
    assert samples_needed(-math.inf, 0.5) is None
    assert samples_needed(-1000.0, 0.5) is None
    assert chance_within(-1000.0, 10**6) == 0.0


def test_statistics_of_the_vocabulary() -> None:
    decoder = build_decoder(
        DecoderConfig(vocab_size=9, d_model=8, num_layers=1, num_heads=2, ffn=PlainFFN(width=8)),
        seed=1,
    )
    hidden, token = torch.randn(3, 8), torch.tensor([0, 4, 8])
    found = token_statistics(decoder, hidden, token, GridConfig(top_k=0))
    with torch.no_grad():
        log = decoder.lm_head(hidden).double().log_softmax(-1)
    mean = (log.exp() * log).sum(-1)
    deviation = ((log.exp() * log**2).sum(-1) - mean**2).sqrt()
    assert torch.allclose(found.log_prob, log[torch.arange(3), token], atol=1e-6)
    assert torch.allclose(found.mean, mean, atol=1e-6)
    assert torch.allclose(found.deviation, deviation, atol=1e-5)
    assert torch.allclose(found.drawn, found.log_prob, atol=1e-6)
