"""Comparisons before they run: arms made equal, tuned with equal effort, in an order that can be done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError
from stamm.engine.config import SkipUpdate
from stamm.models.config import DecoderConfig, GatedFFN, LowRank, PlainFFN
from stamm.models.flops import count_parameters, training_flops
from stamm.optim.schedules import Cosine, WarmupStableDecay
from stamm.pretrain.average_config import WeightAverage
from stamm.pretrain.config import PretrainConfig
from stamm.recipes import searches
from stamm.recipes.arm import Arm
from stamm.recipes.compare import Comparison, shortened
from stamm.recipes.comparisons import (
    activations,
    activations_gpu,
    evidence_activations,
    evidence_smoke,
    smoke,
)
from stamm.recipes.matching import EqualFlops, EqualTime, equal_widths, equal_work
from stamm.recipes.search import Search
from stamm.runs.job import after_producers

COMPARISONS = [smoke, activations, activations_gpu, evidence_activations, evidence_smoke]


@pytest.mark.parametrize("build", COMPARISONS, ids=lambda build: build.__name__)
def test_every_step_reads_only_what_an_earlier_one_leaves(build: Callable[[], Comparison]) -> None:
    for matched in (None, EqualFlops(), EqualTime()):
        config = build() if matched is None else replace(build(), matched=matched)
        assert from_plain(Comparison, to_plain(config)) == config
        steps = after_producers(config.steps())
        names = [step.name for step in steps]
        folders = {step.name: step.folder for step in steps}
        assert len(set(names)) == len(names)
        assert len(set(folders.values())) == len(folders)
        for index, step in enumerate(steps):
            assert set(step.after) <= set(names[:index]), step.name
            for name, path in step.inputs.items():
                left = [folders[one] for one in step.after]
                assert any(path == f or path.startswith(f"{f}/") for f in left) or path == ".", name
        assert names[-1] == "compare"


@pytest.mark.parametrize("build", COMPARISONS, ids=lambda build: build.__name__)
def test_every_arm_gets_the_same_effort(build: Callable[[], Comparison]) -> None:
    config = build()
    effort: Counter[tuple[str, str]] = Counter()
    for step in config.steps():
        kind, _, rest = step.name.partition(".")
        if kind in ("tune", "refine", "choose", "pretrain", "evaluate"):
            effort[kind, rest.split(".")[0]] += 1
    for kind, count in (
        ("tune", len(config.tuning.rates) + 2 * config.tuning.refinements),
        ("refine", config.tuning.refinements),
        ("choose", 1),
        ("pretrain", len(config.seeds)),
        ("evaluate", len(config.seeds)),
    ):
        assert {effort[kind, arm.name] for arm in config.arms} == {count}


def test_short_runs_differ_in_their_rate_alone_and_use_a_seed_of_their_own() -> None:
    config = activations()
    runs = [step.config for step in config.steps() if step.name.startswith("tune.xielu.")]
    assert all(isinstance(run, PretrainConfig) for run in runs)
    assert [run.schedule.peak for run in runs[:3]] == [2e-3, 4e-3, 8e-3]
    assert {run.sequences for run in runs} == {108 * 16}
    assert {run.schedule.warmup_sequences for run in runs} == {64}
    assert {run.seed for run in runs} == {0}
    assert {s.config.seed for s in config.steps() if s.job == "pretrain"} == {0, 1, 2, 3}


@pytest.mark.parametrize("d_model", [48, 96, 384])
@pytest.mark.parametrize("width", [100, 257, 640])
def test_widths_are_solved_for(d_model: int, width: int) -> None:
    model = DecoderConfig(d_model=d_model, num_heads=4, vocab_size=8192)
    base = Arm(name="swiglu", ffn=GatedFFN(width=width, activation="swiglu"))
    plain = Arm(name="xielu", ffn=PlainFFN(width=7))
    solved = equal_widths(model, (base, plain), base, 0.001)
    assert solved[0] == base
    sizes = [count_parameters(replace(model, ffn=arm.ffn)).total for arm in solved]
    assert abs(sizes[1] - sizes[0]) <= 0.001 * sizes[0]
    # The nearest width is 1.5 times that of the gated block, but for the shapes.
    assert solved[1].ffn.width == pytest.approx(1.5 * width, rel=0.1)


def test_a_width_is_as_round_as_the_tolerance_lets_it_be() -> None:
    model = DecoderConfig(d_model=512, num_layers=8, num_heads=8)
    base = Arm(name="swiglu", ffn=GatedFFN(width=1531, activation="swiglu"))
    arms = (base, Arm(name="xielu", ffn=PlainFFN(width=1)))
    widths = {
        tolerance: equal_widths(model, arms, base, tolerance)[1].ffn.width
        for tolerance in (0.0002, 0.001, 0.01)
    }
    assert widths[0.01] % 64 == 0
    assert abs(widths[0.0002] - 1531 * 1.5) <= 1
    assert widths[0.001] & -widths[0.001] >= widths[0.0002] & -widths[0.0002]


def test_no_width_that_fits_is_told() -> None:
    model = DecoderConfig(d_model=64, num_layers=1, num_heads=2, vocab_size=64)
    base = Arm(name="swiglu", ffn=GatedFFN(width=33, activation="swiglu"))
    with pytest.raises(ConfigError, match=r"no width gives .* Raise matched.tolerance"):
        equal_widths(model, (base, Arm(name="xielu", ffn=PlainFFN(width=7))), base, 1e-5)
    low = Arm(name="low", ffn=PlainFFN(width=64, linear=LowRank(rank=4)))
    with pytest.raises(ConfigError, match=r"the width cannot be matched with ffn.linear = LowRank"):
        equal_widths(replace(model, num_layers=2), (base, low), base, 0.001)


def test_equal_work_to_half_a_step() -> None:
    base = DecoderConfig()
    models = [replace(base, ffn=PlainFFN(width=width)) for width in (64, 384, 2000)]
    found = equal_work(models, base, 256, 16_000, 16)
    work = 16_000 * training_flops(base, 256)
    for model, sequences in zip(models, found, strict=True):
        each = training_flops(model, 256)
        assert sequences % 16 == 0
        assert abs(sequences * each - work) <= 8 * each
    assert found[1] == 16_000


def test_the_command_line_changes_how_arms_are_matched() -> None:
    config = override(smoke(), ["matched=EqualFlops", "arms.1.ffn.width=500"])
    assert isinstance(config, Comparison)
    runs = config.runs()
    assert runs["relu2"].model.ffn.width == 500
    work = {
        name: run.total_sequences() * training_flops(run.model, 256) for name, run in runs.items()
    }
    step = 4 * training_flops(runs["relu2"].model, 256)
    assert abs(work["relu2"] - work["swiglu"]) <= step / 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seeds=1", "one has no variance"),
        ("seeds=1,1", "has one twice"),
        ("seeds=0,1", "seeds used for tuning must not be compared"),
        ("baseline=gelu", "names no arm; there are swiglu, relu2, xielu"),
        ("tuning.rates=1e-3", "must be at least two, or one with"),
        ("tuning.rates=1e-3,1e-3", "must rise"),
        ("tuning.rates=0,1e-3", "must be positive"),
        ("pretrain.sequences=none", "arms are matched by it"),
        ("tokenizer.vocab_size=600", "does not have the vocabulary of tokenizer.vocab_size = 600"),
        ("corpus.held_out=0", "leaves no text to evaluate"),
        ("confidence=1", "must lie in"),
        ("looks=2,1", "must rise"),
        ("looks=1,3", "must end with the number of seeds, 2"),
        ("looks=1,2", "must begin with two seeds or more"),
        ("difference=0", "must be positive"),
        ("tuning.margin=-1", "must lie in"),
        ("pretrain.engine.on_nonfinite=RollBackAndSkip", "would train arms on different text"),
        ("arms.1.overrides.length=1.2", r"must lie in \(0, 1\]"),
        ("arms.0.overrides.length=0.5", "its length is pretrain.sequences"),
    ],
)
def test_what_would_stop_it_later_is_refused_now(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        override(smoke(), [change])


def test_an_arm_may_have_fewer_tokens_at_equal_parameters_only() -> None:
    config = override(smoke(), ["arms.1.overrides.length=0.5"])
    assert isinstance(config, Comparison)
    full, half = (run.total_sequences() for run in list(config.runs().values())[:2])
    assert half == full / 2
    with pytest.raises(ConfigError, match=r"overrides\.length of an arm needs EqualParameters"):
        override(smoke(), ["arms.1.overrides.length=0.5", "matched=EqualFlops"])


def test_what_a_schedule_counts_in_sequences_is_as_much_shorter() -> None:
    whole = WarmupStableDecay(peak=1e-3, warmup_sequences=40, decay_sequences=600)
    found = shortened(whole, 0.25)
    assert found == replace(whole, warmup_sequences=10, decay_sequences=150)
    cosine = Cosine(peak=1e-3, warmup_sequences=40)
    assert shortened(cosine, 0.5) == replace(cosine, warmup_sequences=20)
    search = override(searches.smoke(), ["compare.arms.0.overrides.schedule=Cosine"])
    assert isinstance(search, Search)
    whole_run, round_run = (
        next(iter(c.runs().values())) for c in (search.compare, search.round_of(0, []))
    )
    share = round_run.total_sequences() / whole_run.total_sequences()
    assert share < 1
    assert round_run.schedule == shortened(whole_run.schedule, share)


def test_one_arm_is_no_comparison() -> None:
    config = smoke()
    alone = replace(config, arms=(config.baseline_arm(),))  # a search adds another
    with pytest.raises(ConfigError, match="must be at least two"):
        alone.steps()


def test_a_single_rate_needs_no_short_runs() -> None:
    config = override(smoke(), ["tuning.rates=1e-3", "tuning.refinements=0"])
    assert isinstance(config, Comparison)
    assert all(config.tuning.trials(run) == 0 for run in config.runs().values())
    names = [step.name for step in config.steps()]
    assert not [name for name in names if name.startswith("tune.")]
    assert [name for name in names if name.startswith("choose.")] == [
        f"choose.{arm.name}" for arm in config.arms
    ]


def test_no_run_is_stopped_by_its_losses_and_spikes_are_judged_as_asked() -> None:
    config = override(smoke(), ["pretrain.engine.on_nonfinite.window=64"])
    runs = [step.config for step in config.steps() if step.job == "pretrain"]
    assert len(runs) == 21
    for run in runs:
        policy = run.engine.on_nonfinite
        assert isinstance(policy, SkipUpdate) and policy.window == 64
        assert policy.at_most >= run.batches(run.total_sequences()).num_steps


def test_later_seeds_wait_for_a_look_and_all_of_them_for_the_plan() -> None:
    config = evidence_activations()
    steps = {step.name: step for step in config.steps()}
    names = list(steps)
    counted = [name for name in names if name.startswith("pretrain.")]
    assert names.index("plan") < names.index(counted[0])
    assert all("plan" in steps[name].after for name in counted)
    assert {steps["pretrain.xielu.8"].unless, steps["evaluate.xielu.8"].unless} == {""}
    later = {step.unless for name, step in steps.items() if name.endswith((".9", ".16"))}
    assert later == {"look.8"}
    assert steps["compare"].unless == ""
    assert (
        names.index("evaluate.xielu.8") < names.index("look.8") < names.index("pretrain.swiglu.9")
    )
    many = replace(config, looks=(4, 8, 12, 16))
    assert [s.unless for s in many.steps() if s.job == "look"] == ["", "look.4", "look.8"]


def test_averaged_weights_are_evaluated_beside_the_final_ones() -> None:
    average = WeightAverage(last=4, every=16)
    config = replace(evidence_activations(), average=average)
    steps = {step.name: step for step in config.steps()}
    run = steps["pretrain.xielu.1"].config
    assert (run.engine.checkpoint_every, run.engine.keep_checkpoints) == (16, 4)
    assert steps["evaluate.xielu.1"].inputs["model"] == "final/xielu/1/averaged/model"
    assert steps["evaluate_final.xielu.1"].inputs["model"] == "final/xielu/1/model"
    assert steps["plan"].config.evaluated.startswith("the mean of 4 weights")
    with pytest.raises(ConfigError, match="reaches back 12 steps, more than the run has"):
        override(evidence_smoke(), ["average.last=4"])


def test_the_plan_states_the_configuration_and_its_pilot_is_an_input(tmp_path: Path) -> None:
    config = evidence_activations()
    plan = next(step for step in config.steps() if step.name == "plan")
    assert [(arm.name, arm.tokens) for arm in plan.config.arms] == [
        (name, 768 * 4 * 256) for name in ("swiglu", "relu2", "xielu")
    ]
    assert not plan.external
    other = next(s for s in replace(config, confidence=0.9).steps() if s.name == "plan")
    assert other.config.config_sha256 != plan.config.config_sha256
    with pytest.raises(ConfigError, match="holds no comparison"):
        replace(config, pilot=str(tmp_path)).steps()
    result = tmp_path / "comparison.json"
    result.write_text("{}")
    piloted = next(s for s in replace(config, pilot=str(tmp_path)).steps() if s.name == "plan")
    assert list(piloted.external) == [str(result)]


def test_code_and_data_of_the_user_belong_to_the_steps_that_read_them(tmp_path: Path) -> None:
    code, task, text = (tmp_path / name for name in ("mine.py", "mine.jsonl", "periodic.json"))
    data = tmp_path / "data.jsonl"
    data.write_text("")
    text.write_text(json.dumps({"file": data.name}))
    changes = [
        f"pretrain.optimizer={code}:Lion",
        f"pretrain.objective={code}:MyObjective",
        f"evaluate.tasks=held_out,{task}",
        "pretrain.evaluate=PeriodicEvaluation",
        f"pretrain.evaluate.tasks={text}",
    ]
    config = override(smoke(), changes)
    assert isinstance(config, Comparison)
    steps = config.steps()
    trained = [step for step in steps if step.job == "pretrain"]
    assert {tuple(step.external.values()) for step in trained} == {(code, text, data)}
    evaluated = [step for step in steps if step.job == "evaluate"]
    assert {tuple(step.external.values()) for step in evaluated} == {(task,)}
