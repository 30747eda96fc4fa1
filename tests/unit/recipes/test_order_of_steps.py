"""The order of steps follows from what they read: nothing is said twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stamm.base.errors import ConfigError
from stamm.recipes.catalog import RECIPES, Recipe, Stepwise
from stamm.runs.job import after_producers


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_no_step_names_a_step_whose_output_it_reads(recipe: Recipe) -> None:
    config = recipe.build()
    if not isinstance(config, Stepwise):
        pytest.skip("its steps depend on another run")
    try:
        steps = config.steps()
    except ConfigError as error:
        pytest.skip(f"it needs settings: {error.what}")
    derived = after_producers([replace(step, after=()) for step in steps])
    for step, bare in zip(steps, derived, strict=True):
        assert not set(step.after) & set(bare.after), step.name
    if len(steps) > 1:
        assert any(step.after for step in derived)
