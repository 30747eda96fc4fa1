"""The ladder: sizes, lengths and rates of its points, and recipes with parameters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.models.flops import count_parameters
from stamm.optim.config import AdamW
from stamm.recipes.catalog import get
from stamm.recipes.compare import Comparison
from stamm.recipes.comparisons import smoke
from stamm.recipes.evidence_recipes import evidence_ablation, evidence_structured
from stamm.recipes.ladder import (
    LENGTH_POWER,
    NEAR,
    RATES,
    SHAPE_FACTORS,
    SHIFTS,
    SIZES,
    TRIED_FACTORS,
    WIDTH_POWER,
    ladder,
    ladder_expanded,
    ladder_recipe,
    ladder_structured,
    published,
    rule_shift,
)
from stamm.recipes.matching import output_deviation
from stamm.recipes.recipe_source import recipe_source
from stamm.recipes.resolve import build, resolve


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", RATES)
def test_a_point_has_its_size_and_length_and_untuned_rates(size: float, scale: str) -> None:
    point = build("compare.ladder", f"size={size}", "tokens_a_parameter=5", f"scale={scale}")
    assert isinstance(point, Comparison)
    for run in point.runs().values():
        parameters = count_parameters(run.model).total
        assert parameters == pytest.approx(size * 1e6, rel=0.04)
        assert run.total_sequences() * run.context == pytest.approx(5 * parameters, rel=0.002)
        assert run.optimizer.shape_lr_factor == SHAPE_FACTORS[scale]
        if scale == "matched":
            assert output_deviation(run.model) == pytest.approx(0.6, rel=1e-4)
    assert not any(point.tuning_of(arm.name).trials(run) for arm, run in zip(point.arms, point.runs().values(), strict=True))  # fmt: skip
    assert len({step.name for step in point.steps()}) == len(point.steps())


def test_rates_follow_the_rule_in_width_and_length() -> None:
    def rate(size: float, length: float) -> float:
        point = ladder(size, length)
        rates = {arm.name: arm.overrides.rates for arm in point.arms}
        assert {
            name: found and found[0] / rates["swiglu"][0] for name, found in rates.items()
        } == pytest.approx(  # type: ignore[index]
            {name: value / RATES["as_is"]["swiglu"] for name, value in RATES["as_is"].items()}
        )
        return point.arms[0].overrides.rates[0]  # type: ignore[index]

    assert rate(0.35, 1) == RATES["as_is"]["swiglu"]
    # Tokens are in proportion to parameters, so a larger size is also a longer run.
    assert rate(0.35, 4) == pytest.approx(rate(0.35, 1) * 4**-LENGTH_POWER, rel=1e-3)
    parameters = [count_parameters(ladder(s).runs()["swiglu"].model).total for s in (0.35, 2.65)]
    length = parameters[0] / parameters[1]
    assert rate(2.65, length) == pytest.approx(rate(0.35, 1) * (64 / 208) ** WIDTH_POWER, rel=1e-3)


def test_the_grid_has_the_rate_of_the_rule_inside() -> None:
    ruled, tried = ladder(0.7, 5, "matched"), ladder(0.7, 5, "matched", "grid")
    for one, other in zip(ruled.arms, tried.arms, strict=True):
        assert one.overrides.rates is not None
        assert other.overrides.rates == tuple(one.overrides.rates[0] * s for s in SHIFTS)
        assert other.overrides.rates[0] < one.overrides.rates[0] < other.overrides.rates[-1]
        run = tried.runs()[other.name]
        factors = TRIED_FACTORS if other.name == "xielu" else (None,)
        assert tried.tuning_of(other.name).trials(run) == len(SHIFTS) * len(factors)
    assert all(high / low == 2 for low, high in itertools.pairwise(SHIFTS))
    near = ladder(0.7, 5, "matched", "near")
    for one, other in zip(ruled.arms, near.arms, strict=True):
        assert other.overrides.rates == tuple(one.overrides.rates[0] * s for s in NEAR)  # type: ignore[index]
        assert near.tuning_of(other.name).trials(near.runs()[other.name]) == len(NEAR) + 2
    names = [step.name for step in tried.steps() if step.name.startswith("tune.xielu.")]
    assert len(names) == len(SHIFTS) * len(TRIED_FACTORS)


def test_other_claims_at_points_of_the_ladder() -> None:
    shift = rule_shift(ladder(0.7, 5))
    expanded = ladder_expanded(0.7, 5, "matched")
    assert expanded.tuning.rates == tuple(RATES["matched"]["relu2"] * shift * s for s in NEAR)
    trials = {n: expanded.tuning_of(n).trials(run) for n, run in expanded.runs().items()}
    assert trials == {"gelu": 5, "xgelu": 11}
    assert output_deviation(expanded.runs()["gelu"].model) == pytest.approx(0.6, rel=1e-4)
    recipe = ladder_recipe(0.7, 5)
    runs = recipe.runs()
    assert runs.pop("every_token").goldfish is None
    for name, other in evidence_ablation().runs().items():
        run = runs[name]
        assert run.goldfish == other.goldfish and run.model.qk_norm == other.model.qk_norm
        assert type(run.schedule) is type(other.schedule)
        assert run.optimizer == other.optimizer
    assert {run.total_sequences() for run in runs.values()} == {ladder(0.7, 5).pretrain.sequences}
    assert {run.schedule.warmup_sequences for run in runs.values()} == {
        ladder(0.7, 5).pretrain.schedule.warmup_sequences
    }
    assert not runs["no_qk_norm"].model.qk_norm and isinstance(runs["adamw"].optimizer, AdamW)


def test_structured_layers_at_equal_flops() -> None:
    comparison = ladder_structured(0.35, 5)
    runs, other = comparison.runs(), evidence_structured().runs()
    assert list(runs) == list(other)
    for name, run in runs.items():
        assert run.model.structured == other[name].model.structured
        assert type(run.model.ffn.linear) is type(other[name].model.ffn.linear)
    lengths = {name: run.total_sequences() for name, run in runs.items()}
    assert lengths["dense"] < lengths["low_rank"] > lengths["self_guided"]
    parameters = count_parameters(runs["low_rank"].model).total
    assert lengths["low_rank"] * runs["low_rank"].context == pytest.approx(
        5 * parameters, rel=0.002
    )


def test_the_published_setting() -> None:
    runs = published().runs()
    for run in runs.values():
        count = count_parameters(run.model).total
        assert run.total_sequences() * run.context == pytest.approx(100 * count, rel=1e-3)
        assert (run.model.qk_norm, run.model.init_std, run.goldfish) == (False, 0.025, None)
        steps = run.total_sequences() / run.batch[0].size
        rates = [
            run.schedule.rate(round(share * steps) * 4, run.total_sequences())
            for share in (0.2, 0.79, 1)
        ]
        assert rates[0] == rates[1] > rates[2]
    widths = {name: run.model.ffn.width / run.model.d_model for name, run in runs.items()}
    assert widths == {"swiglu": 4, "relu2": 6, "xielu": 6}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("size=0.5", "size = 0.5 is not a size of the ladder"),
        ("size=big", "size = 'big' is not a number"),
        ("tokens_a_parameter=0.01", "gives 4 steps of 1,024 tokens"),
        ("scale=half", "scale = 'half' is not one of"),
        ("sizes=0.7", "unknown key 'sizes'"),
    ],
)
def test_wrong_parameters_are_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve("compare.ladder", [change])


def test_a_copy_of_the_recipe_takes_the_same_parameters(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(recipe_source(get("compare.ladder")))
    changes = ["size=0.7", "scale=matched", "seeds=1,2"]
    own, built_in = resolve(f"{mine}:ladder", changes), resolve("compare.ladder", changes)
    assert own.config == built_in.config
    assert built_in.overrides == tuple(changes)


def test_a_function_with_parameters_beside_a_recipe_is_its_helper(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from stamm.recipes.catalog import get\n"
        "if TYPE_CHECKING:\n    from stamm.recipes.compare import Comparison\n"
        "def point(size: float = 0.35, sizes: list[int] = []) -> Comparison:\n"
        "    return get('compare.ladder').build()\n"
        "def small() -> Comparison:\n    return point()\n"
    )
    assert resolve(str(mine), []).name == "mine.small"
    assert resolve(f"{mine}:point", ["seeds=1,2"]).name == "mine.point"


def test_own_rates_of_an_arm_are_checked_as_those_of_all() -> None:
    changed = build(smoke, "arms.1.overrides.rates=1e-3,4e-3", "tuning.refinements=0")
    assert [len(changed.tuning_of(arm.name).rates) for arm in changed.arms] == [3, 2, 3]
    with pytest.raises(ConfigError, match="must be at least two, or one with"):
        build(smoke, "arms.1.overrides.rates=1e-3")
