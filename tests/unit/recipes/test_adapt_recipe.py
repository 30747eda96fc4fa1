"""Steps of adapt.activation, and what it refuses before it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.adapt.config import CarveConfig, ReplacementConfig, SparsifyConfig
from stamm.base.errors import ConfigError, StammError
from stamm.losses.config import Density
from stamm.models.config import Experts, PlainFFN
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.adapt import (
    AdaptRecipe,
    CarveRecipe,
    FurtherTraining,
    SparsifyRecipe,
    activation,
)


def test_without_tokens_the_model_is_swapped_and_measured(smoke_run: Path, tmp_path: Path) -> None:
    recipe = replace(activation(), run=str(smoke_run), arm="xielu", activation="relu2")
    names = [step.name for step in recipe.steps(tmp_path)]
    assert names == ["replacement", "evaluate.start", "evaluate.replacement", "report"]


def test_training_goes_on_from_both_models_where_the_run_stopped(
    smoke_run: Path, tmp_path: Path
) -> None:
    recipe = AdaptRecipe(run=str(smoke_run), arm="xielu", activation="relu2", tokens=8 * 256)
    steps = {step.name: step for step in recipe.steps(tmp_path)}
    swapped, control = steps["pretrain.replaced"].config, steps["pretrain.control"].config
    assert isinstance(swapped, PretrainConfig) and isinstance(control, PretrainConfig)
    assert (swapped.model.ffn.spec.name, control.model.ffn.spec.name) == ("relu2", "xielu")
    assert replace(swapped, model=control.model, begin=control.begin) == control
    read = 30 * 4  # sequences of the run
    assert (swapped.first_sequence, swapped.sequences) == (read, 8)
    assert steps["pretrain.replaced"].inputs["begin"] == "replacement/model"
    assert steps["pretrain.control"].inputs["begin"].endswith("arms/xielu/model")
    alone = replace(recipe, training=FurtherTraining(control=False)).steps(tmp_path)
    assert "pretrain.control" not in {step.name for step in alone}


def test_the_control_of_the_density_loss_is_the_same_training_without_it(
    smoke_run: Path, tmp_path: Path
) -> None:
    training = FurtherTraining(density=Density(weight=0.2))
    given = {"run": str(smoke_run), "arm": "swiglu", "tokens": 8 * 256, "training": training}
    recipe = SparsifyRecipe(activation="reglu", perplexity=1.01, **given)
    steps = {step.name: step.config for step in recipe.steps(tmp_path)}
    sparse, without = steps["pretrain.sparse"], steps["pretrain.no_density"]
    assert isinstance(sparse, PretrainConfig) and isinstance(without, PretrainConfig)
    assert sparse.density == Density(weight=0.2) and without.density == Density(weight=0.0)
    assert replace(sparse, density=without.density) == without
    assert steps["pretrain.control"].density is None
    with pytest.raises(ConfigError, match="tokens = 0"):
        replace(recipe, tokens=0).steps(tmp_path)
    with pytest.raises(ConfigError, match="the model has experts"):
        CarveRecipe(**given).steps(tmp_path)


def test_an_activation_of_the_users_own_is_checked_first(smoke_run: Path, tmp_path: Path) -> None:
    spec = replace(PlainFFN(activation="softplus").spec, name="mine")
    recipe = AdaptRecipe(run=str(smoke_run), arm="xielu", activation=spec, tokens=8 * 256)
    assert [step.name for step in recipe.steps(tmp_path)][:2] == ["activation.mine", "replacement"]


def test_bad_settings_are_refused(smoke_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set activation=NAME alone"):
        AdaptRecipe(replacement=ReplacementConfig(activation="gelu"))
    with pytest.raises(ConfigError, match="run is empty"):
        activation().steps(tmp_path)
    start = AdaptRecipe(run=str(smoke_run), arm="xielu", activation="relu2")
    with pytest.raises(ConfigError, match="tokens = 100 is less than one step of 1024"):
        replace(start, tokens=100).steps(tmp_path)
    with pytest.raises(ConfigError, match="xielu, which is of one input"):
        replace(start, activation="swiglu", tokens=8 * 256).steps(tmp_path)
    with pytest.raises(StammError, match="has no arm"):
        replace(start, arm="gelu").steps(tmp_path)


def test_carving_and_thresholds_have_the_same_steps(smoke_run: Path, tmp_path: Path) -> None:
    """Further training has experts, and a control without; thresholds are in the trained activation."""
    carving = CarveRecipe(run=str(smoke_run), arm="swiglu", experts=4, active=2, tokens=8 * 256)
    steps = {step.name: step for step in carving.steps(tmp_path)}
    carved, control = steps["pretrain.carved"].config, steps["pretrain.control"].config
    assert isinstance(carved, PretrainConfig) and isinstance(control, PretrainConfig)
    assert carved.model.ffn.experts == Experts(count=4, active=2)
    assert control.model.ffn.experts is None
    assert steps["pretrain.carved"].inputs["begin"] == "carve/model"
    sparse = SparsifyRecipe(run=str(smoke_run), arm="relu2", share=0.8, tokens=8 * 256)
    trained = {step.name: step for step in sparse.steps(tmp_path)}["pretrain.sparse"].config
    assert isinstance(trained, PretrainConfig) and trained.model.ffn.spec.name == "relu2_cut"


@pytest.mark.parametrize(
    ("recipe", "arm", "what"),
    [
        (CarveRecipe(experts=7, active=2), "swiglu", "does not divide into experts.count = 7"),
        (SparsifyRecipe(), "swiglu", "cannot be folded"),
        (SparsifyRecipe(activation="drelu"), "swiglu", "a gate times a function of up"),
        (SparsifyRecipe(activation="relu2"), "swiglu", "swiglu, which is gated"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_before_it_runs(
    recipe: CarveRecipe | SparsifyRecipe, arm: str, what: str, smoke_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=what):
        replace(recipe, run=str(smoke_run), arm=arm).steps(tmp_path)


def test_goals_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="active = 9 is more than count = 8"):
        CarveRecipe(active=9)
    with pytest.raises(ConfigError, match="set one of them"):
        SparsifyRecipe(share=0.5, perplexity=1.01)
    with pytest.raises(ConfigError, match="set experts=N active=N shared=N alone"):
        CarveRecipe(carve=CarveConfig(experts=Experts(count=4, active=2)))
    with pytest.raises(ConfigError, match="set share=S or perplexity=P"):
        SparsifyRecipe(sparsify=SparsifyConfig(share=0.5, perplexity=None))
