"""Log-probabilities of answers equal what one pass over each answer gives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from stamm.align.training.log_probs import completion_log_probs
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder


@dataclass(frozen=True)
class Tokens:
    ids: list[int]
    supervised: list[bool]


DECODER = build_decoder(
    DecoderConfig(
        vocab_size=61,
        d_model=32,
        num_layers=2,
        ffn=PlainFFN(width=48),
        max_context=40,
        init_std=0.3,
    ),
    seed=5,
)


def answers() -> list[Tokens]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for length in (9, 2, 30, 17, 41, 9):
        ids = torch.randint(61, (length,), generator=generator).tolist()
        supervised = (torch.rand(length, generator=generator) < 0.5).tolist()
        made.append(Tokens(ids, supervised))
    return made


@torch.no_grad()
def alone(each: Tokens) -> float:
    logits_TV = DECODER(torch.tensor([each.ids[:-1]]))[0].double()
    nats_T = logits_TV.log_softmax(-1)
    return sum(
        nats_T[place - 1, each.ids[place]].item()
        for place in range(1, len(each.ids))
        if each.supervised[place]
    )


@pytest.mark.parametrize("batch_tokens", [1, 64, 10_000])
def test_sums_equal_one_pass_per_answer(batch_tokens: int) -> None:
    found = completion_log_probs(DECODER, answers(), batch_tokens)
    assert found.dtype == torch.float64
    for value, each in zip(found.tolist(), answers(), strict=True):
        assert value == pytest.approx(alone(each), abs=1e-4)
    assert len({round(value, 2) for value in found.tolist()}) > 3


@pytest.mark.parametrize("length", [1, 42])
def test_an_answer_that_does_not_fit_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=f"answer 0 has {length} tokens"):
        completion_log_probs(DECODER, [Tokens([1] * length, [True] * length)])
