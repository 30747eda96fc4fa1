"""Learning rates at their turning points, and which sequences each step trains on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import ConfigError
from stamm.optim.schedules import (
    BatchPlan,
    BatchStage,
    ConstantRate,
    Cosine,
    Schedule,
    WarmupStableDecay,
    step_rate,
)

TOTAL = 1000
WSD = WarmupStableDecay(peak=1.0, final_share=0.1, warmup_sequences=100, decay_share=0.2)


@pytest.mark.parametrize(
    ("sequence", "rate"),
    [
        (1, 0.01),
        (50, 0.5),
        (100, 1.0),
        (500, 1.0),
        (800, 1.0),
        (850, 0.1 + 0.9 * (1 - math.sqrt(0.25))),
        (1000, 0.1),
    ],
)
def test_warmup_stable_decay(sequence: int, rate: float) -> None:
    assert WSD.rate(sequence, TOTAL) == pytest.approx(rate)


def test_the_cooldown_can_be_given_in_sequences() -> None:
    config = WarmupStableDecay(peak=1.0, decay_sequences=10)
    assert config.decay_start(TOTAL) == 990
    assert config.rate(1000, TOTAL) == 0.0


@pytest.mark.parametrize(
    ("law", "half"), [("1-sqrt", 1 - math.sqrt(0.5)), ("linear", 0.5), ("cosine", 0.5)]
)
def test_every_law_falls_from_the_peak_to_the_final_share(law: str, half: float) -> None:
    config = WarmupStableDecay(peak=4.0, final_share=0.25, decay_share=0.5, law=law)  # type: ignore[arg-type]  # a name of three
    assert config.rate(500, TOTAL) == 4.0
    assert config.rate(750, TOTAL) == pytest.approx(1.0 + 3.0 * half)
    assert config.rate(1000, TOTAL) == 1.0
    quarter = {"1-sqrt": 0.5, "linear": 0.75, "cosine": 0.5 + math.sqrt(0.125)}[law]
    assert config.rate(625, TOTAL) == pytest.approx(1.0 + 3.0 * quarter)


@pytest.mark.parametrize("kind", [WarmupStableDecay, Cosine, ConstantRate])
def test_a_warm_up_may_start_above_zero(kind: type[Schedule]) -> None:
    config = kind(peak=2.0, warmup_sequences=100, warmup_from=0.1)
    assert [config.rate(s, 1000) for s in (0, 50, 100)] == pytest.approx([0.2, 1.1, 2.0])
    assert kind(peak=2.0, warmup_sequences=100, warmup_from=1.0).rate(1, 1000) == 2.0


def test_a_constant_rate_stays_at_the_peak() -> None:
    config = ConstantRate(peak=3.0, warmup_sequences=10)
    assert [config.rate(s, TOTAL) for s in (5, 10, 11, 1000)] == [1.5, 3.0, 3.0, 3.0]
    assert config.decay_start(TOTAL) == TOTAL
    assert config.rate(5, 5) == 3.0


@given(st.integers(1, 200), st.integers(0, 250), st.floats(0, 1), st.floats(0, 1))
def test_schedules_rise_then_fall_and_end_where_they_say(
    total: int, warmup: int, origin: float, final: float
) -> None:
    common = {"peak": 1.0, "warmup_sequences": warmup, "warmup_from": origin}
    schedules: list[Schedule] = [
        ConstantRate(**common),  # type: ignore[arg-type]  # whole numbers and shares
        Cosine(final_share=final, **common),  # type: ignore[arg-type]
        *(
            WarmupStableDecay(final_share=final, law=law, **common)  # type: ignore[arg-type]
            for law in ("1-sqrt", "linear", "cosine")
        ),
    ]
    for config in schedules:
        rates = [config.rate(sequence, total) for sequence in range(1, total + 1)]
        start = config.decay_start(total)
        assert rates[:start] == sorted(rates[:start])
        assert start == 0 or rates[start - 1] == 1.0
        for before, after in zip(rates[start:], rates[start + 1 :], strict=False):
            assert after <= before + 1e-15
        assert start == total or rates[-1] == pytest.approx(final, abs=1e-15)


@pytest.mark.parametrize("schedule", [WarmupStableDecay, Cosine])
def test_a_run_shorter_than_its_warm_up_still_reaches_the_peak(
    schedule: type[WarmupStableDecay] | type[Cosine],
) -> None:
    config = schedule(peak=2.0, final_share=0.1, warmup_sequences=160)
    assert [config.rate(s, 100) for s in (25, 50, 100)] == [0.5, 1.0, 2.0]
    assert config.decay_start(100) == 100


def test_a_cooldown_waits_for_the_end_of_the_warm_up() -> None:
    config = WarmupStableDecay(peak=1.0, final_share=0.05, warmup_sequences=160, decay_share=0.3)
    assert config.decay_start(200) == 160
    assert config.rate(150, 200) == 150 / 160
    assert config.rate(160, 200) == 1.0
    assert config.rate(170, 200) == pytest.approx(0.05 + 0.95 * (1 - math.sqrt(10 / 40)))
    assert config.rate(200, 200) == pytest.approx(0.05)


@given(st.integers(1, 300), st.integers(0, 400), st.none() | st.integers(0, 400), st.floats(0, 1))
def test_a_rate_rises_to_the_peak_and_falls_to_its_end_whatever_the_lengths(
    total: int, warmup: int, decay: int | None, share: float
) -> None:
    config = WarmupStableDecay(
        peak=1.0, warmup_sequences=warmup, decay_sequences=decay, decay_share=share
    )
    rates = [config.rate(sequence, total) for sequence in range(1, total + 1)]
    start = config.decay_start(total)
    assert min(warmup, total) <= start <= total
    assert rates[:start] == sorted(rates[:start])
    assert start == 0 or rates[start - 1] == 1.0
    assert rates[start:] == sorted(rates[start:], reverse=True)
    assert start == total or rates[-1] == 0.0


@pytest.mark.parametrize(
    ("field", "value"), [("decay_sequences", -5), ("warmup_sequences", -1), ("peak", math.inf)]
)
def test_a_length_or_rate_out_of_range_is_told(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = {value} must "):
        WarmupStableDecay(**{field: value})  # type: ignore[arg-type]  # any field may be named


@pytest.mark.parametrize(("size", "warmup"), [(1, 0), (16, 0), (16, 32), (16, 5), (16, 200)])
def test_a_linear_fall_to_zero_learns_from_every_step(size: int, warmup: int) -> None:
    """As transformers.get_linear_schedule_with_warmup: of the N steps that fall, step i has (N - i) / N."""
    steps = 6
    config = WarmupStableDecay(
        peak=2.0, warmup_sequences=warmup, decay_share=1.0, law="linear", final_share=0.0
    )
    rates = [step_rate(config, i * size, size, steps * size) for i in range(steps)]
    if warmup % size == 0:
        falling = steps - warmup // size
        falls = [2.0 * (falling - i) / falling for i in range(falling)]
        rises = [2.0 * (i + 1) / (steps - falling) for i in range(steps - falling)]
        assert rates == pytest.approx([*rises, *falls])
    assert min(rates) > 0


@pytest.mark.parametrize("law", ["1-sqrt", "linear", "cosine"])
@pytest.mark.parametrize("sizes", [[1], [3], [1, 1, 1], [2, 2, 1], [4, 4, 4, 3]])
@pytest.mark.parametrize("warmup", [0, 1, 2, 50])
def test_no_step_has_the_rate_zero(law: str, sizes: list[int], warmup: int) -> None:
    common = {"peak": 1.0, "final_share": 0.0, "warmup_sequences": warmup}
    total = sum(sizes)
    for config in (
        WarmupStableDecay(law=law, decay_share=1.0, **common),  # type: ignore[arg-type]
        WarmupStableDecay(law=law, decay_sequences=2, **common),  # type: ignore[arg-type]
        Cosine(**common),  # type: ignore[arg-type]
    ):
        rates = [step_rate(config, sum(sizes[:i]), n, total) for i, n in enumerate(sizes)]
        assert min(rates) > 0
        assert max(rates) == 1.0


def test_the_last_step_of_a_fall_that_ends_above_zero_has_the_final_rate() -> None:
    for config in (WSD, Cosine(peak=1.0, final_share=0.1)):
        assert step_rate(config, 984, 16, TOTAL) == pytest.approx(0.1)
    assert step_rate(ConstantRate(peak=3.0), 984, 16, TOTAL) == 3.0


def test_cosine_ends() -> None:
    config = Cosine(peak=2.0, final_share=0.5, warmup_sequences=10)
    assert config.rate(10, 110) == 2.0
    assert config.rate(60, 110) == pytest.approx(1.5)
    assert config.rate(110, 110) == pytest.approx(1.0)


def test_all_problems_of_a_schedule_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        WarmupStableDecay(peak=-1.0, final_share=2.0)
    assert "peak = -1.0 must be positive" in caught.value.line()
    assert "final_share = 2.0 must lie in [0, 1]" in caught.value.line()
    with pytest.raises(ConfigError, match=r"law = 'sqrt' must be one of 1-sqrt, linear, cosine"):
        WarmupStableDecay(law="sqrt")  # type: ignore[arg-type]  # what is tested


def test_apertus_8b_takes_the_number_of_steps_its_scripts_give() -> None:
    stages = (BatchStage(size=1024), BatchStage(start=1_718_272_000, size=2048))
    plan = BatchPlan(stages, 3_662_109_375)
    assert plan.num_steps == 2_627_139
    assert plan.step(1_677_999).first + 1024 == 1_718_272_000
    assert plan.step(1_678_000).size == 2048


@given(st.integers(1, 7), st.integers(0, 6), st.integers(1, 9), st.integers(0, 90))
def test_steps_cover_the_sequences_once_and_in_order(
    first: int, steps_before: int, second: int, total: int
) -> None:
    stages: tuple[BatchStage, ...] = (BatchStage(size=first),)
    if steps_before:
        stages += (BatchStage(start=first * steps_before, size=second),)
    plan = BatchPlan(stages, total)
    seen: list[int] = []
    for index in range(plan.num_steps):
        span = plan.step(index)
        seen.extend(range(span.first, span.first + span.size))
    assert seen == list(range(len(seen)))
    assert len(seen) <= total
    assert total - len(seen) < max(first, second)
