"""A run repeats the plan's warnings, and long training in float32 on a GPU must be asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.engine.estimate import Devices
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.job import plan_lines
from stamm.pretrain.plan import plan
from stamm.pretrain.training_run import check_precision
from stamm.recipes.demo import smoke
from stamm.recipes.llama import llama_1b_xielu, llama_3b_xielu

FLOAT32 = EngineConfig(precision="float32")


@pytest.mark.parametrize("count", [8, 16, 32, 64])
@pytest.mark.parametrize("recipe", [llama_1b_xielu(), llama_3b_xielu()])
def test_gpu_recipes_have_no_warning_on_8_to_64_gpus(recipe: PretrainConfig, count: int) -> None:
    facts = plan(recipe, Devices(count, "H100"), None)
    assert not [warning for warning in facts["warnings"] if "checkpoint" not in warning["what"]]
    assert recipe.engine.precision == "bfloat16" and recipe.engine.async_checkpointing


def test_the_1b_recipe_writes_a_checkpoint_an_hour_on_8_gpus() -> None:
    facts = plan(llama_1b_xielu(), Devices(8, "H100"), None)
    assert 45 * 60 < facts["checkpoints"]["between_seconds"] <= 3600
    assert facts["warnings"] == []


def test_a_run_repeats_the_warnings_of_the_plan() -> None:
    recipe = llama_1b_xielu()
    lines = plan_lines(replace(recipe, engine=FLOAT32), 10**7, Devices(24, "H100"))
    assert any("does not divide over 24 processes" in line for line in lines)
    assert any('engine.precision = "float32"' in line for line in lines)
    assert any("passes over the corpus" in line for line in plan_lines(recipe, 10**6, None))
    assert all(line.startswith("Warning: ") and line.endswith(".") for line in lines)
    assert plan_lines(recipe, 10**8, Devices(8, "H100")) == []


def test_long_training_in_float32_on_a_gpu_is_refused_unless_asked_for() -> None:
    recipe = replace(llama_1b_xielu(), engine=FLOAT32)
    with pytest.raises(
        ConfigError, match=r"float32.*Set engine.precision=bfloat16, or engine.device"
    ):
        check_precision(recipe, "cuda", 10_000)
    check_precision(recipe, "cpu", 10_000)
    check_precision(replace(recipe, engine=EngineConfig(device="cuda")), "cuda", 10_000)
    check_precision(llama_1b_xielu(), "cuda", 10**7)
    check_precision(smoke().pretrain, "cuda", 10_000)
