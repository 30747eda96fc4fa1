"""Recipes of the claims: what their arms change, what they cost, and how work is made equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stamm.activations.describe import learned_curve
from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, LowRank, PlainFFN, SelfGuide, Structured
from stamm.models.flops import training_flops
from stamm.optim.config import AdamW, AdEMAMix
from stamm.optim.schedules import Cosine, WarmupStableDecay
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison
from stamm.recipes.comparisons import evidence_activations, evidence_smoke, smoke
from stamm.recipes.evidence_recipes import (
    evidence_ablation,
    evidence_beta,
    evidence_expanded,
    evidence_expanded_gated,
    evidence_goldfish,
    evidence_longer,
    evidence_optimizer,
    evidence_scale,
    evidence_shapes,
    evidence_structured,
    evidence_tokens,
)
from stamm.recipes.matching import EqualParameters, equal_widths, equal_work, training_work

RECIPES = [
    evidence_ablation,
    evidence_beta,
    evidence_expanded,
    evidence_expanded_gated,
    evidence_goldfish,
    evidence_longer,
    evidence_optimizer,
    evidence_scale,
    evidence_shapes,
    evidence_structured,
    evidence_tokens,
]


@pytest.mark.parametrize("build", RECIPES, ids=lambda build: build.__name__)
def test_a_recipe_has_one_planned_look_and_costs_at_most_an_hour_and_a_half_of_a_core(
    build: Callable[[], Comparison],
) -> None:
    config = build()
    assert from_plain(Comparison, to_plain(config)) == config
    assert len(config.seeds) >= 5
    assert config.planned_looks() == (len(config.seeds),)
    runs = list(config.runs().values())
    arms, seeds = len(runs), len(config.seeds)
    tuned = sum(config.tuning.trials(run) for run in runs)
    steps = max(run.total_sequences() for run in runs) / config.pretrain.batch[0].size
    assert (tuned + arms * seeds) * steps * 0.0625 + arms * seeds * 12 <= 1.5 * 3600
    names = [step.name for step in config.steps()]
    assert len(set(names)) == len(names)
    assert "plan" in names


def test_every_arm_of_the_optimizer_recipe_adds_one_thing_and_the_last_all() -> None:
    runs = evidence_optimizer().runs()
    base = runs["llama"]
    assert isinstance(base.optimizer, AdamW)
    assert isinstance(base.schedule, Cosine)
    assert base.goldfish is None
    assert not base.model.qk_norm
    assert isinstance(runs["ademamix"].optimizer, AdEMAMix)
    assert replace(runs["ademamix"], optimizer=base.optimizer) == base
    assert replace(runs["qk_norm"].model, qk_norm=False).qk_norm is base.model.qk_norm
    assert runs["qk_norm"].model.qk_norm
    assert isinstance(runs["wsd"].schedule, WarmupStableDecay)
    assert replace(runs["wsd"], schedule=base.schedule) == base
    whole = runs["apertus"]
    assert (whole.optimizer, whole.schedule) == (runs["ademamix"].optimizer, runs["wsd"].schedule)
    assert whole.model.ffn.spec.name == "xielu"
    assert whole.model.qk_norm
    assert whole.goldfish is not None
    # Tuning moves the peak of the arm's own schedule.
    short = evidence_optimizer().short(whole, 1e-3)
    assert isinstance(short.schedule, WarmupStableDecay)
    assert short.schedule.peak == 1e-3


def test_the_recipe_with_fewer_tokens_is_the_whole_recipe() -> None:
    whole, runs = evidence_optimizer().runs()["apertus"], evidence_tokens().runs()
    assert runs["llama"] == evidence_optimizer().runs()["llama"]
    for name, steps in (("apertus_70", 538), ("apertus_60", 461)):  # of 768
        assert runs[name].sequences == steps * 4
        assert replace(runs[name], sequences=whole.sequences) == whole


def test_every_arm_of_the_ablation_takes_one_part_out_of_the_whole_recipe() -> None:
    optimizer, runs = evidence_optimizer().runs(), evidence_ablation().runs()
    whole, llama = runs["whole"], optimizer["llama"]
    assert whole == optimizer["apertus"]
    assert runs["adamw"] == replace(whole, optimizer=llama.optimizer)
    assert runs["cosine"] == replace(whole, schedule=llama.schedule)
    # The width is solved again: QK-norm has 2 * 32 numbers a layer.
    found = runs["no_qk_norm"]
    assert not found.model.qk_norm
    assert replace(found, model=whole.model) == whole
    used = {seed for one in (evidence_optimizer(), evidence_tokens()) for seed in one.seeds}
    assert used.isdisjoint(evidence_ablation().seeds)


def test_the_longer_comparison_is_the_same_training_with_twice_the_tokens() -> None:
    runs, longer = evidence_activations().runs(), evidence_longer()
    assert set(longer.runs()) == {"relu2", "xielu"}
    for name, found in longer.runs().items():
        assert found.total_sequences() == 2 * runs[name].total_sequences()
        schedule = runs[name].schedule
        assert isinstance(schedule, WarmupStableDecay)
        schedule = replace(schedule, warmup_sequences=2 * schedule.warmup_sequences)
        assert replace(found, sequences=runs[name].sequences) == replace(
            runs[name], schedule=schedule
        )


def test_beta_is_learned_above_the_same_start() -> None:
    fixed, learned = (run.model.ffn.spec for run in evidence_beta().runs().values())
    assert [one.name for one in fixed.trainable] == ["alpha_p", "alpha_n"]
    assert [one.name for one in learned.trainable] == ["alpha_p", "fall", "beta"]
    x = [-4.0, -1.0, -0.1, 0.0, 0.5, 3.0]
    curves = [learned_curve(spec, spec.initial_values(), x) for spec in (fixed, learned)]
    assert curves[0].slope == pytest.approx(curves[1].slope)
    assert curves[0].value == pytest.approx(curves[1].value)


def test_guides_count_as_work() -> None:
    ffn = PlainFFN(width=384, activation="gelu", linear=LowRank(rank=32))
    plain = DecoderConfig(ffn=ffn)
    guided = replace(plain, structured=Structured(guide=SelfGuide()))
    assert training_work(plain, 64, 100, 4) == 400 * training_flops(plain, 64)
    # Guides of 3 of 4 layers: a falls from 1 to 0 over half of the run, so they are used in a quarter.
    each = 3 * 2 * 64 * 2 * plain.d_model * 384
    extra = training_work(guided, 64, 1000, 4) - training_work(plain, 64, 1000, 4)
    assert extra == pytest.approx(4 * each * 3 * 1000 / 4, rel=0.01)
    found = equal_work([plain, guided], plain, 64, 4000, 4)
    assert found[0] == 4000
    assert found[1] < 4000
    work = training_work(plain, 64, 1000, 4)
    assert abs(training_work(guided, 64, found[1] // 4, 4) - work) <= 0.6 * work / 1000 * 2
    runs = evidence_structured().runs()
    assert runs["self_guided"].total_sequences() < runs["low_rank"].total_sequences()


def test_self_guided_arms_are_matched_by_their_work_alone() -> None:
    with pytest.raises(ConfigError, match="must be EqualFlops: an arm is self-guided"):
        replace(evidence_structured(), matched=EqualParameters())


def test_widths_are_solved_with_what_an_arm_overrides() -> None:
    model = DecoderConfig(d_model=16, num_heads=1, num_kv_heads=1, vocab_size=64, qk_norm=False)
    base = Arm(name="base", ffn=PlainFFN(width=64))
    arm = Arm(name="qk", ffn=PlainFFN(width=64), overrides=ArmOverrides(qk_norm=True))
    # 2 * 16 numbers in each of 4 layers, as many as one unit has.
    solved = equal_widths(model, (base, arm), base, 0.001)
    assert [one.ffn.width for one in solved] == [64, 63]


def test_the_command_line_changes_what_an_arm_overrides() -> None:
    changes = ["arms.1.overrides.optimizer=AdamW", "arms.1.overrides.qk_norm=false"]
    config = override(smoke(), ["matched=EqualFlops", *changes])
    assert isinstance(config, Comparison)
    runs = config.runs()
    assert isinstance(runs["relu2"].optimizer, AdamW)
    assert not runs["relu2"].model.qk_norm
    assert isinstance(runs["xielu"].optimizer, AdEMAMix)


def test_toys_of_the_evidence_steps_have_no_overrides() -> None:
    assert {arm.overrides for arm in evidence_smoke().arms} == {ArmOverrides()}
