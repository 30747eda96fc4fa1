"""Recipes build, round-trip, and say what their arms are."""

from __future__ import annotations

import ast
import inspect
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.corpus.consent.config import FetchConfig
from stamm.models.flops import count_parameters
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.catalog import RECIPES, Recipe, get
from stamm.recipes.demo import demo
from stamm.recipes.recipe_source import recipe_source
from stamm.recipes.resolve import resolve
from stamm.recipes.robots import RobotsRecipe
from stamm.recipes.study import Study, single_steps
from stamm.runs.job import after_producers
from stamm.runs.run import workspace


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_round_trips_through_its_plain_form(recipe: Recipe) -> None:
    config = recipe.build()
    again = from_plain(type(config), to_plain(config))
    assert again == config
    assert recipe.summary
    parameters = inspect.signature(recipe.build).parameters.values()
    assert all(one.default is not one.empty for one in parameters)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_copied_recipe_is_equal(recipe: Recipe, tmp_path: Path) -> None:
    file, function = tmp_path / "a:b.py", recipe.build.__name__
    file.write_text(recipe_source(recipe), encoding="utf-8")
    assert resolve(f"{file}:{function}", ()).config == recipe.build()
    own = [one for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef)]
    public = [
        one
        for one in own
        if not one.name.startswith("_")
        and len(one.args.args) == len(one.args.defaults)
        and None not in one.args.kw_defaults
    ]
    if len(public) == 1:
        assert resolve(str(file), ()).config == recipe.build()
    else:
        with pytest.raises(ConfigError, match=rf"has {len(public)} recipes. .*:{function}"):
            resolve(str(file), ())


def test_the_arms_of_the_demo_are_matched_in_parameters() -> None:
    study = demo()
    sizes = {arm.name: count_parameters(study.model_of(arm)) for arm in study.arms}
    without_shapes = {size.total - size.activation for size in sizes.values()}
    assert len(without_shapes) == 1
    widths = {arm.name: arm.ffn.width for arm in study.arms}
    assert widths["xielu"] == widths["relu2"] == 1.5 * widths["swiglu"]


def test_the_steps_of_a_study_read_only_what_earlier_steps_left() -> None:
    steps = after_producers(demo().steps())
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for index, step in enumerate(steps):
        assert set(step.after) <= set(names[:index]), step.name
    assert names[:4] == ["canaries", "filter", "global_filter", "corpus"]
    assert names[-1] == "report"


def test_shipped_inputs_are_hashed_like_a_users_own() -> None:
    """So that another version of the shipped data makes the corpus anew."""
    external = {name: path for step in demo().steps() for name, path in step.external.items()}
    assert {"package:robots.jsonl.zst", "package:probe_books.jsonl.zst"} < set(external)
    assert all(path.is_file() for path in external.values())


def test_a_study_is_changed_from_the_command_line() -> None:
    changes = ["pretrain.model.num_layers=6", "arms.2.ffn.activation=xiprelu", "exported="]
    study = override(demo(), changes)
    assert isinstance(study, Study)
    assert study.model_of(study.arms[2]).num_layers == 6
    assert study.arms[2].ffn.activation == "xiprelu"


@pytest.mark.parametrize(
    ("change", "kind"),
    [("evaluate=none", "evaluate"), ("audit=none", "audit"), ("export=none", "export")],
)
def test_what_is_not_asked_for_has_no_steps(change: str, kind: str) -> None:
    study = override(demo(), [change])
    jobs = [step.job for step in study.steps()]
    assert kind not in jobs
    assert len(jobs) == len(demo().steps()) - (1 if kind == "export" else 3)
    steps = after_producers(study.steps())
    assert set(steps[-1].after) == {step.name for step in steps[:-1]}
    assert from_plain(Study, to_plain(study)) == study


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["pretrain.model.qk_norm=false"],
            ["arm 'xielu' cannot be exported", "computes 'xielu' in float32 only", "export=none"],
        ),
        (
            ["pretrain.model.qk_norm=false"],
            ["arm 'xielu' cannot be exported", "only inside Apertus", "qk_norm=true"],
        ),
        (["exported=xielu,gelu"], ["names no arm; there are swiglu, relu2, xielu"]),
        (["exported=xielu,xielu"], ["names an arm twice"]),
        (
            ["export.sample_tokens=240"],
            ["265 tokens, more than pretrain.model.max_context = 256", "export.samples=0"],
        ),
        (["corpus.probes=none"], ["corpus.probes = None plants no passage", "Set audit=none"]),
        (
            ["audit.new_tokens=206"],
            ["257 tokens", "max_context = 256", "Set audit.new_tokens=205 or less"],
        ),
        (["audit.prefix_tokens=300"], ["Set a smaller audit.prefix_tokens"]),
        (
            ["pretrain.context=64", "pretrain.model.max_context=64"],
            ["151 tokens", "(pretrain.model.max_context set on the command line)", "audit=none"],
        ),
        (["corpus.held_out=0"], ["leaves no text to evaluate the models on", "evaluate=none"]),
        (["evaluate.context=512"], ["evaluate.context = 512 exceeds pretrain.model.max_context"]),
        (["evaluate.overlap=256"], ["evaluate.overlap = 256 leaves nothing new"]),
    ],
)
def test_what_would_stop_a_study_late_is_refused_at_once(
    changes: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        override(demo(), changes)
    for word in words:
        assert word in caught.value.line()


@pytest.mark.parametrize(
    "changes",
    [
        ["arms.2.name=xiprelu", "arms.2.ffn.activation=xiprelu", "exported=xiprelu"],
        ["corpus.probes=none", "audit=none"],
        ["corpus.held_out=0", "evaluate=none"],
        ["audit.new_tokens=205"],
        ["evaluate.overlap=255"],
        ["export.sample_tokens=240", "export.samples=0"],
        ["exported=swiglu,relu2", "pretrain.model.qk_norm=false"],
    ],
)
def test_the_fix_that_a_refusal_names_is_taken(changes: list[str]) -> None:
    assert override(demo(), changes).steps()


@pytest.mark.parametrize("file", ["state.json", "decoder.json"])
def test_a_run_that_starts_from_other_weights_reads_them(tmp_path: Path, file: str) -> None:
    folder, root = tmp_path / "other" / "weights", tmp_path / "runs" / "mine"
    begin = ["begin=InitialWeights", f"begin.checkpoint={folder}"]
    single = override(PretrainConfig(), begin)
    study = override(demo(), [f"pretrain.{change}" for change in begin])
    for build in (study.steps, lambda: single_steps(single, root, {"pack": tmp_path}, [])):
        with pytest.raises(ConfigError, match=r"neither a checkpoint \(state.json\) nor a stored"):
            build()
    folder.mkdir(parents=True)
    (folder / file).write_text("{}")
    for steps in (study.steps(), single_steps(single, root, {"pack": tmp_path}, [])):
        trained = [step for step in steps if step.job == "pretrain"]
        assert trained
        for step in trained:
            read = workspace(root, step, NoProgress()).inputs["begin"]
            assert Path(os.path.normpath(read)) == folder
            assert step.external[str(folder / file)] == folder / file


def test_unmatched_arms_are_refused_with_their_sizes() -> None:
    with pytest.raises(ConfigError, match=r"the arms differ by \d+\.\d+% in parameters \(swiglu: "):
        override(demo(), ["arms.0.ffn.width=300"])


def test_a_short_name_finds_its_recipe_and_a_wrong_one_its_neighbour() -> None:
    assert get("apertus_8b").name == "pretrain.apertus_8b"
    with pytest.raises(ConfigError, match="Did you mean 'apertus_8b'"):
        get("apertus_8")


def test_arms_need_plain_and_different_names() -> None:
    study = demo()
    with pytest.raises(ConfigError, match="two arms of one name"):
        replace(study, arms=(study.arms[2], study.arms[2]))
    with pytest.raises(ConfigError, match="must be letters"):
        replace(study.arms[0], name="../escape")


def test_a_snapshot_waits_no_longer_for_a_connection_than_for_an_answer(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("example.org\n", encoding="utf-8")
    for answer_s, connect_s in ((5.0, 5.0), (30.0, 10.0)):
        recipe = RobotsRecipe(
            domains=str(hosts), agent="a/1", contact="https://example.org/bot", answer_s=answer_s
        )
        (fetch,) = recipe.steps()
        assert isinstance(fetch.config, FetchConfig)
        assert (fetch.config.answer_s, fetch.config.connect_s) == (answer_s, connect_s)
