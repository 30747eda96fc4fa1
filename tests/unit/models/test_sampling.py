"""Sampled completions: the model's distribution, whatever shares the batch."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.generate import nats_of_sequences
from stamm.models.sampling import Sampled, draw, sample, uniforms
from stamm.models.sampling_config import SamplingConfig
from tests.unit.models.test_generate import from_scratch


def decoder(vocab_size: int = 61) -> Decoder:
    config = DecoderConfig(
        vocab_size=vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn=PlainFFN(width=48),
        max_context=200,
        init_std=0.3,
    )
    return build_decoder(config, seed=5).double()


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(61, (n,), generator=generator).tolist() for n in lengths]


def run(
    model: Decoder, given: list[list[int]], stop: set[int] = frozenset(), **options: object
) -> list[Sampled]:  # type: ignore[assignment]
    config = SamplingConfig(**options)  # type: ignore[arg-type]
    found = list(sample(model, given, config, frozenset(stop)))
    return sorted(found, key=lambda each: each.request)


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_at_temperature_0_it_is_greedy(slots: int) -> None:
    model, given = decoder(), prompts((1, 7, 3, 140, 12, 1, 7))
    found = run(model, given, temperature=0, max_new_tokens=15, slots=slots)
    assert [each.tokens for each in found] == [from_scratch(model, each, 15) for each in given]
    assert not any(each.stopped for each in found)


def test_the_log_probability_is_that_of_one_pass() -> None:
    model, given = decoder(), prompts((5, 9, 130, 2))
    found = run(model, given, max_new_tokens=20, temperature=1.7, top_k=9, slots=3)
    whole = [prompt + each.tokens for prompt, each in zip(given, found, strict=True)]
    for each, nats, prompt in zip(found, nats_of_sequences(model, whole, 500), given, strict=True):
        assert each.log_prob == pytest.approx(-float(nats[len(prompt) - 1 :].sum()), abs=1e-4)


def test_a_completion_does_not_depend_on_what_shares_the_batch() -> None:
    model, given = decoder(), prompts((5, 9, 4, 2, 6, 3))
    whole = run(model, given, max_new_tokens=12, slots=4)
    assert run(model, given, max_new_tokens=12, slots=1) == [
        Sampled(
            e.request,
            e.tokens,
            pytest.approx(e.log_prob),
            pytest.approx(e.sampled_log_prob),
            e.stopped,
        )
        for e in whole
    ]
    config = SamplingConfig(max_new_tokens=12)
    (alone,) = sample(model, given[4:5], config, frozenset(), keys=[4])
    assert alone.tokens == whole[4].tokens


def test_stop_tokens_end_a_completion_and_free_its_slot() -> None:
    model, given = decoder(), prompts((3,) * 40)
    stop = {7, 8, 9, 10, 11, 12}
    found = run(model, given, stop, max_new_tokens=30, slots=4)
    assert len(found) == 40
    for each in found:
        assert each.stopped == (each.tokens[-1] in stop)
        assert not stop & set(each.tokens[:-1])
        assert each.stopped or len(each.tokens) == 30
    assert {each.stopped for each in found} == {True, False}


def test_it_ends_where_the_context_is_full() -> None:
    (found,) = run(decoder(), prompts((195,)), max_new_tokens=50)
    assert (len(found.tokens), found.stopped) == (5, False)


def test_equal_prompts_get_different_completions_and_equal_keys_the_same() -> None:
    model, given = decoder(), prompts((4,)) * 3
    found = run(model, given, max_new_tokens=12)
    assert len({tuple(each.tokens) for each in found}) == 3
    config = SamplingConfig(max_new_tokens=12)
    again = list(sample(model, given, config, frozenset(), keys=[5, 5, 6]))
    by_request = {each.request: each.tokens for each in again}
    assert by_request[0] == by_request[1] != by_request[2]


def test_tokens_follow_the_models_distribution() -> None:
    model = decoder(vocab_size=12)
    given = [[1, 2, 3]] * 4000
    found = run(model, given, max_new_tokens=1, temperature=1.5, slots=64)
    with torch.no_grad():
        expected = (model(torch.tensor([given[0]]))[0, -1] / 1.5).softmax(-1).numpy() * 4000
    counted = torch.bincount(torch.tensor([e.tokens[0] for e in found]), minlength=12).numpy()
    statistic = float(((counted - expected) ** 2 / expected).sum())
    assert statistic < 37.4  # exceeded with probability 1e-4 at 11 degrees of freedom


def test_top_k_and_top_p_keep_the_fewest_likely_tokens() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    uniform = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    rows = logits.expand(1000, 4)

    def counts(**options: float) -> list[int]:
        found, _ = draw(rows, uniform, 1.0, **options)  # type: ignore[arg-type]
        return torch.bincount(found, minlength=4).tolist()

    assert counts() == pytest.approx([100, 200, 300, 400], abs=1)
    assert counts(top_k=2) == pytest.approx([0, 0, 1000 * 3 / 7, 1000 * 4 / 7], abs=1)
    assert counts(top_p=0.65) == pytest.approx([0, 0, 1000 * 3 / 7, 1000 * 4 / 7], abs=1)
    assert counts(top_p=0.1) == [0, 0, 0, 1000]
    assert counts(top_k=3, top_p=0.8)[0] == 0


def test_a_token_of_probability_0_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        found, _ = draw(logits, torch.tensor([uniform], dtype=torch.float64), 1.0)
        assert int(found) in (0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"slots": 0}, "slots"),
        ({"seed": -1}, r"seed = -1 must lie in \[0, 2\^64\)"),
        ({"seed": 2**64}, r"seed = 18446744073709551616 must lie"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingConfig(**options)  # type: ignore[arg-type]


def test_the_largest_seed_draws() -> None:
    seed = SamplingConfig(seed=2**64 - 1).seed
    assert all(0 <= number < 1 for number in uniforms(seed, 3, 5))


def test_prompts_that_leave_no_room_are_refused() -> None:
    for given in ([[]], [[1] * 200]):
        with pytest.raises(ConfigError, match="max_context is 200"):
            run(decoder(), given)
