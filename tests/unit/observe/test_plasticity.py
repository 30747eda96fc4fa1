"""The plasticity probe: what it trains, on what, and that it sees a model that cannot learn."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.base.errors import DataError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.observe.plasticity import RATE, SEED, plasticity_loss

TEXT = [[(3 * i + j) % 32 for j in range(12)] for i in range(6)]


def small(activation: str = "relu") -> Decoder:
    config = DecoderConfig(
        vocab_size=32, d_model=16, num_layers=1, num_heads=2, max_context=16, init_std=0.3,
        ffn=PlainFFN(width=32, activation=activation),
    )  # fmt: skip
    return build_decoder(config, seed=1)


def test_the_loss_is_that_of_a_plain_loop() -> None:
    decoder = small("gelu")
    found = plasticity_loss(decoder, TEXT, steps=5)
    assert found.tokens == 6 * 11
    tokens = torch.tensor(TEXT)[:, :-1]
    target = torch.randint(32, (66,), generator=torch.Generator().manual_seed(SEED))
    learner = small("gelu")
    optimizer = torch.optim.AdamW(learner.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(learner(tokens).flatten(0, 1), target)
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found.initial == pytest.approx(losses[0], rel=1e-5)
    assert found.final == pytest.approx(losses[5], rel=1e-4)
    assert found.mean == pytest.approx(sum(losses) / 6, rel=1e-4)


def test_the_decoder_is_left_as_it_was_and_may_be_frozen() -> None:
    decoder = small().requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    first, again = plasticity_loss(decoder, TEXT, steps=3), plasticity_loss(decoder, TEXT, steps=3)
    assert first == again
    assert first.final < first.initial
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


def test_a_model_without_plasticity_is_seen() -> None:
    """Features grown until one direction has nearly all of their length learn less in the same steps."""
    collapsed = small()
    with torch.no_grad():
        collapsed.model.embed_tokens.weight.add_(300.0)
    healthy, lost = (plasticity_loss(model, TEXT, steps=60).final for model in (small(), collapsed))
    assert lost > healthy + 0.3
    assert lost < math.log(32) + 1.0


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="no text to probe"):
        plasticity_loss(small(), [[1], []])
