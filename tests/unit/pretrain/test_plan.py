"""A plan's sums, its pace, and what it warns of before anything is wasted."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.estimate import parse_devices
from stamm.losses.config import Goldfish
from stamm.models.config import LowRank, PlainFFN, SelfGuide, Structured
from stamm.models.flops import guide_flops, training_flops
from stamm.models.guide_draws import guide_uses
from stamm.optim.config import AdamW, AdEMAMix, GroupRule, Muon
from stamm.optim.schedules import BatchPlan, BatchStage, WarmupStableDecay, step_rate
from stamm.pretrain import plan as planning
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.pretrain.plan import Throughput, plan, setting_of
from stamm.pretrain.plan_warnings import collapse
from stamm.recipes.apertus import apertus_8b

RUN = PretrainConfig(
    batch=(BatchStage(size=16),),
    sequences=16_000,
    engine=EngineConfig(precision="bfloat16", checkpoint_every=500),
)


def _said(config: PretrainConfig, devices: str | None = None, **more: Any) -> list[str]:
    facts = plan(config, parse_devices(devices) if devices else None, **more)
    return [f"{warning['what']}. {warning['fix']}" for warning in facts["warnings"]]


def _engine(**settings: Any) -> EngineConfig:
    return replace(RUN.engine, **settings)


def _schedule(**settings: Any) -> WarmupStableDecay:
    return WarmupStableDecay(**settings)


def test_nothing_is_said_of_a_run_with_nothing_to_say() -> None:
    assert _said(RUN) == []
    assert _said(RUN, "4xH100") == []
    assert plan(RUN, None)["notes"] == []


@pytest.mark.parametrize(
    ("changes", "devices", "said"),
    [
        (
            {},
            "32xH100",
            "a step of 16 sequences does not divide over 32 processes. Make batch sizes multiples of 32",
        ),
        (
            {"engine": _engine(parallel=Parallel(data=2, tensor=2))},
            "8xH100",
            "asks for 2 x 1 x 2 processes (data x context x tensor), and there are 8 devices",
        ),
        (
            {"engine": _engine(parallel=Parallel(tensor=2, replicas=3))},
            "8xH100",
            "replicas = 3 does not divide the 4 data-parallel processes. Use a divisor of 4",
        ),
        (
            {"engine": _engine(parallel=Parallel(tensor=3))},
            "3xH100",
            "tensor = 3 does not divide model.num_heads = 4",
        ),
        (
            {"engine": _engine(parallel=Parallel(tensor=4))},
            "4xH100",
            "tensor = 4 does not divide model.num_kv_heads = 2",
        ),
        (
            {"engine": _engine(parallel=Parallel(context=3))},
            "3xH100",
            "context = 256 tokens do not divide into 6 equal parts. Use a multiple of 6",
        ),
        (
            {
                "engine": _engine(parallel=Parallel(tensor=2)),
                "model": replace(RUN.model, ffn=PlainFFN(linear=LowRank(rank=16))),
            },
            "2xH100",
            "tensor = 2 cannot split LowRank matrices",
        ),
        ({"engine": EngineConfig(checkpoint_every=1000)}, "1xH100", 'engine.precision = "float32"'),
        (
            {"schedule": _schedule(decay_sequences=20_000)},
            None,
            "the cooldown of 20,000 sequences (schedule.decay_sequences) is longer than the run",
        ),
        (
            {"schedule": _schedule(warmup_sequences=10_000, decay_share=0.5)},
            None,
            "overlap in a run of 16,000: the cooldown is cut to 6,000",
        ),
        (
            {"schedule": _schedule(warmup_sequences=16_000)},
            None,
            "schedule.warmup_sequences = 16,000 is no shorter than the run",
        ),
        (
            {"optimizer": AdEMAMix(alpha_warmup_steps=1001)},
            None,
            "optimizer.alpha_warmup_steps = 1,001 is longer than the run of 1,000 steps",
        ),
        (
            {"model": replace(RUN.model, vocab_size=4100)},
            None,
            "model.vocab_size = 4,100 is not a multiple of 64: products on GPUs are slower. "
            "Use 4,160",
        ),
        ({"goldfish": Goldfish(hash="apertus")}, None, "h = 50 wraps to 0 for 9% or more"),
    ],
)
def test_what_is_warned_of(changes: dict[str, Any], devices: str | None, said: str) -> None:
    found = [line for line in _said(replace(RUN, **changes), devices) if said in line]
    assert len(found) == 1, _said(replace(RUN, **changes), devices)
    assert "\n" not in found[0]


def test_warm_ups_that_began_in_another_run_are_not_held_against_this_one() -> None:
    longer = replace(RUN, optimizer=AdEMAMix(alpha_warmup_steps=1001, beta3_warmup_steps=1001))
    for moments, count in (("keep", 0), ("restart", 2)):
        begin = InitialWeights(
            checkpoint="runs/a/arms/b/checkpoints/step-00000900", moments=moments
        )  # type: ignore[arg-type]
        found = [line for line in _said(replace(longer, begin=begin)) if "warmup_steps" in line]
        assert len(found) == count


@pytest.mark.parametrize("final_share", [0.0, 0.1])
def test_the_curve_has_the_rates_of_the_steps(final_share: float) -> None:
    schedule = _schedule(peak=2.0, decay_share=0.3, law="linear", final_share=final_share)
    batch = (BatchStage(size=16), BatchStage(start=8_000, size=32))
    config = replace(RUN, schedule=schedule, batch=batch, sequences=16_000)
    curve = plan(config, None)["learning_rate"]
    steps = BatchPlan(batch, 16_000)
    taken = {
        span.first + span.size: step_rate(schedule, span.first, span.size, 16_000)
        for span in map(steps.step, range(steps.num_steps))
    }
    for point in curve:
        end = min(end for end in taken if end >= point["sequence"])
        assert point["rate"] == taken[end]
    assert curve[-1]["rate"] > 0  # no step has a rate of 0


def test_many_passes_over_a_corpus_are_warned_of() -> None:
    total = RUN.total_sequences(None)
    (line,) = _said(RUN, corpus_sequences=total // 8)
    assert f"{total:,} sequences are 8.0 passes over the corpus" in line
    assert _said(RUN, corpus_sequences=total // 4) == []


def test_too_little_memory_is_warned_of_with_what_would_help() -> None:
    config = replace(apertus_8b(), engine=EngineConfig(precision="bfloat16"))
    (line,) = [line for line in _said(config, "1xA100") if line.startswith("a device needs")]
    assert "and has 74.5 GiB" in line
    assert (
        "Use a smaller micro_batch, or engine.activation_checkpointing=layers, or more devices"
        in line
    )
    assert not [
        line for line in _said(replace(config, micro_batch=1), "64xGH200") if "needs" in line
    ]


def test_a_model_too_large_for_this_machine_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [line for line in _said(RUN) if "needs" in line]
    monkeypatch.setattr(planning, "memory_bytes", lambda: 2**20)
    (line,) = [line for line in _said(RUN) if "needs" in line]
    assert line.startswith("this machine needs") and "and has 1 MiB" in line
    assert line.endswith("or a smaller model")


@pytest.mark.parametrize(
    ("micro_batch", "devices", "in_flight", "parts"),
    [(4, "1xH100", 4, 4), (4, "2xH100", 4, 2), (4, "8xH100", 2, 1), (3, "1xH100", 3, 6), (None, "4xH100", 4, 1)],
)  # fmt: skip
def test_a_micro_batch_is_what_one_process_has_in_flight(
    micro_batch: int | None, devices: str, in_flight: int, parts: int
) -> None:
    config = replace(RUN, micro_batch=micro_batch)
    setting, sequences = setting_of(config, parse_devices(devices))
    assert (sequences, setting.micro_batches) == (in_flight, parts)
    assert not [line for line in _said(config, devices) if "divide" in line]


def test_checkpoints_are_neither_too_rare_nor_too_dear() -> None:
    slow = Throughput(flops_per_s=training_flops(RUN.model, RUN.context) * 16 / 10, source="")
    facts = plan(RUN, None, pace=slow)
    assert facts["time"]["seconds"] == pytest.approx(1000 * 10)
    assert facts["checkpoints"]["between_seconds"] == pytest.approx(5000)
    (line,) = [li for li in _said(RUN, pace=slow) if "checkpoint is written every 1 h 23 min" in li]
    assert "engine.checkpoint_every=360 or less" in line
    fast = Throughput(flops_per_s=slow.flops_per_s * 1000, source="")
    often = replace(RUN, sequences=160_000, engine=_engine(checkpoint_every=1))
    (line,) = _said(often, pace=fast)
    assert "writing checkpoints takes 5" in line
    every = int(line.split("checkpoint_every=")[1].split()[0])
    rare = replace(often, engine=_engine(checkpoint_every=every))
    assert 0.04 < plan(rare, None, pace=fast)["checkpoints"]["share"] <= 0.05
    assert _said(rare, pace=fast) == []
    assert _said(replace(often, sequences=16_000), pace=fast) == []  # seconds in all
    hidden = _engine(checkpoint_every=1, async_checkpointing=True)
    assert _said(replace(often, engine=hidden), pace=fast) == []


@pytest.mark.parametrize(("sequences", "few"), [(16, True), (10**8, False)])
def test_unusual_lengths_are_noted_and_no_warning(sequences: int, few: bool) -> None:
    facts = plan(replace(RUN, sequences=sequences), None)
    note = facts["notes"][0]
    assert ("below 1" if few else "above 2000") in note
    assert facts["warnings"] == []


def test_averages_that_run_away_without_gradients_are_told() -> None:
    fast = AdEMAMix(beta2=0.95, beta3=0.999, alpha=1.0)
    (said,) = _said(replace(RUN, optimizer=fast))
    # ln(0.2236 / 0.001) / ln(0.999 / 0.97468) = 5.4099 / 0.024646
    assert "a weight without a gradient for 220 steps" in said
    assert "Use beta2 of at least beta3 squared" in said
    assert _said(replace(RUN, optimizer=fast, sequences=200 * 16)) == []
    assert _said(replace(RUN, optimizer=replace(fast, beta2=0.999))) == []
    assert _said(replace(RUN, optimizer=AdamW())) == []
    # As released, Apertus needs 9,187 steps: a note.
    assert any("9,187 steps" in note for note in plan(apertus_8b(), None)["notes"])
    assert _said(replace(RUN, optimizer=AdEMAMix())) == []


@pytest.mark.parametrize("h", [1, 13, 50, 63, 64, 65, 100])
def test_the_share_of_windows_that_wrap_to_nothing(h: int) -> None:
    # By adding up factors of 2, one id after another, up to 64 of them.
    held = [1.0] + [0.0] * 64
    for _ in range(h):
        now = [0.0] * 65
        for have, more in product(range(65), range(65)):
            share = 2.0 ** -(more + 1) if more < 64 else 2.0**-64
            now[min(have + more, 64)] += held[have] * share
        held = now
    assert collapse(Goldfish(h=h, hash="apertus")) == pytest.approx(held[64], abs=1e-9)


def test_work_counts_the_guides_that_will_be_used() -> None:
    ffn = PlainFFN(width=384, linear=LowRank(rank=32))
    model = replace(RUN.model, num_layers=12, ffn=ffn, structured=Structured(guide=SelfGuide()))
    config = replace(RUN, model=model)
    found = plan(config, None)["flops"]["total"]
    uses = sum(guide_uses(model, step, 1000, seed=1) for step in range(1, 1001)) * 16
    plain = 16_000 * training_flops(model, RUN.context)
    assert found == pytest.approx(plain + uses * guide_flops(model, RUN.context), rel=0.01)
    assert plan(config, None)["parameters"]["guides"] == 11 * 2 * 128 * 384


def test_a_pace_is_that_of_one_process_and_divides_the_work() -> None:
    one = plan(RUN, None, pace=Throughput(flops_per_s=1e10, source="as it was"))["time"]
    two = replace(RUN, engine=_engine(parallel=Parallel(data=2)))
    other = plan(two, None, pace=Throughput(flops_per_s=1e10, source="as it was"))["time"]
    assert one["seconds"] == pytest.approx(2 * other["seconds"])
    assert one["source"] == "as it was"
    assert plan(RUN, None)["time"] is None


def test_shards_are_those_of_one_replica() -> None:
    """16 devices in 4 replicas hold shards as 4 devices do, and do the work of 16."""
    two = replace(RUN, engine=_engine(parallel=Parallel(replicas=4)))
    small, whole, hybrid = (
        plan(config, parse_devices(devices))
        for config, devices in ((RUN, "4xH100"), (RUN, "16xH100"), (two, "16xH100"))
    )
    for part in ("weights", "gradients", "moments"):
        assert hybrid["memory"][part] == small["memory"][part] > whole["memory"][part]
    assert hybrid["processes"] == whole["processes"] and hybrid["replicas"] == 4
    assert hybrid["time"] == whole["time"] and hybrid["warnings"] == []
    assert plan(two, None)["processes"]["data"] == 4  # the fewest that there can be


def test_groups_of_the_optimizer_hold_every_parameter() -> None:
    rules = (GroupRule(pattern="embed_tokens", lr_factor=0.5),)
    for optimizer in (AdEMAMix(), AdamW(groups=rules), Muon()):
        facts = plan(replace(RUN, optimizer=optimizer), None)
        held = sum(group["parameters"] for group in facts["optimizer"])
        assert held == facts["parameters"]["total"]
    assert {group["lr_factor"] for group in plan(replace(RUN, optimizer=AdamW(groups=rules)), None)["optimizer"]} == {0.5, 1.0}  # fmt: skip


def test_batches_follow_their_stages() -> None:
    stages = (BatchStage(size=16), BatchStage(start=8000, size=32))
    sizes = plan(replace(RUN, batch=stages), None)["batch_size"]
    assert [point["sequences"] for point in sizes] == [16] * 30 + [32] * 30
    assert math.isclose(sizes[-1]["sequence"], 16_000)
