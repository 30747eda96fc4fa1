"""A setting that no step of a run reads is refused, whichever recipe it is set for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError
from stamm.export.config import ExportConfig
from stamm.recipes.catalog import RECIPES
from stamm.recipes.comparisons import smoke
from stamm.recipes.execute import RecipeRun, run
from stamm.recipes.resolve import resolve
from stamm.recipes.trained_models import changed
from tests.unit.untrained_run import untrained_run

PROMPTS = "package:align_prompts.jsonl.zst"
CHATS = "package:align_chats.jsonl.zst"
OFFLINE = (f"data={CHATS}",)
SAMPLED = (f"prompts={PROMPTS}", "reward=Length")
GRPO = (*SAMPLED, "sampling.max_new_tokens=8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An arm of a run with an untrained model."""
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    return str(root)


def check(root: Path, recipe: str, *overrides: str) -> None:
    """What a new run does before its first step."""
    RecipeRun(resolve(recipe, overrides), root)


@pytest.mark.parametrize(
    ("recipe", "given", "unread"),
    [
        ("align.dpo", OFFLINE, "n=20"),
        ("align.dpo", OFFLINE, "report.examples=1"),
        ("align.dpo", OFFLINE, "report.redact=true"),
        ("align.dpo", OFFLINE, "sampling.temperature=0.5"),
        ("align.dpo", OFFLINE, "select.candidates=3"),
        ("align.dpo", SAMPLED, "prepare.max_bad_rows=0.1"),
        ("align.dpo", SAMPLED, "prepare.fields.prompt=question"),
        ("align.dpo", OFFLINE, "prepare.kind=chat"),
        ("align.dpo", OFFLINE, "test_n=4"),
        ("align.dpo", OFFLINE, "gold=Stopped"),
        ("align.dpo", OFFLINE, "answers.draws=500"),
        ("align.dpo", OFFLINE, "reference.mismatched=true"),
        ("align.simpo", OFFLINE, "reference.batch_tokens=64"),
        ("align.qrpo", SAMPLED, "answers.draws=500"),
        ("align.grpo", GRPO, "test_n=4"),
        ("align.grpo", GRPO, "gold=Stopped"),
        ("align.grpo", GRPO, "answers.draws=500"),
        ("align.reward", OFFLINE, "prepare.kind=chat"),
        ("align.sft", (*OFFLINE, "prepare.held_out=0"), "prepare.seed=5"),
        ("align.sft", OFFLINE, "train.schedule.warmup_from=0.5"),
        ("align.sft", (*OFFLINE, "train.sequences=8"), "train.epochs=2"),
        (
            "align.sft",
            (*OFFLINE, "train.schedule.decay_sequences=8"),
            "train.schedule.decay_share=0.5",
        ),
        ("align.sft", (*OFFLINE, "export.target=gguf"), "export.max_shard_bytes=4000"),
        ("align.sft", OFFLINE, "export.bits_tolerance=0.1"),
        ("adapt.activation", ("activation=relu2",), "training.peak=0.5"),
        ("adapt.activation", ("activation=relu2",), "training.warmup_share=0.5"),
        ("adapt.activation", ("activation=relu2",), "training.control=false"),
    ],
)
def test_what_no_step_reads_is_refused(
    model: str, tmp_path: Path, recipe: str, given: tuple[str, ...], unread: str
) -> None:
    check(tmp_path, recipe, f"run={model}", *given)
    with pytest.raises(ConfigError, match=f"no step of this run reads {unread.split('=')[0]}"):
        check(tmp_path, recipe, f"run={model}", unread, *given)


@pytest.mark.parametrize(
    ("recipe", "unread"),
    [
        ("demo", "pretrain.model.ffn.activation=relu2"),
        ("demo", "pretrain.model.ffn.width=64"),
        ("demo", "arms.0.overrides.length=0.5"),
        ("demo", "export.bits_tolerance=0.1"),
        ("smoke", "pretrain.epochs=2"),
        ("compare.smoke", "pretrain.seed=5"),
        ("compare.smoke", "report.redact=true"),
        ("corpus.demo", "report.smoothing=0.2"),
        ("compare.smoke", "arms.1.ffn.width=64"),
    ],
)
def test_settings_that_arms_replace_are_refused(tmp_path: Path, recipe: str, unread: str) -> None:
    with pytest.raises(ConfigError, match=f"no step of this run reads {unread.split('=')[0]}"):
        check(tmp_path, recipe, unread)


def test_a_setting_is_read_again_where_another_needs_it(tmp_path: Path) -> None:
    """What a shipped recipe sets may be left unread by an override."""
    check(tmp_path, "demo", "export.quantization=BF16", "export.bits_tolerance=0.1")
    check(tmp_path, "demo", "export.samples=0")
    check(tmp_path, "smoke", "pretrain.sequences=none", "pretrain.epochs=0.5")


@pytest.mark.parametrize("recipe", ["align.sft", "align.qrpo", "align.kto", "align.reward"])
@pytest.mark.parametrize("key", ["data", "context", "needs", "min_references"])
def test_what_a_recipe_sets_for_its_data_is_an_unknown_key(recipe: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key 'prepare\.{key}'"):
        resolve(recipe, [f"prepare.{key}=1"])


@pytest.mark.parametrize("recipe", ["align.sft", "align.dpo", "align.kto", "align.reward"])
@pytest.mark.parametrize(
    "unknown",
    [
        "objective=mine.py:Mine", "z_loss=10", "context=64", "model.num_layers=7", "masks=report",
        "model.ffn.activation=relu2", "goldfish=none", "begin=none", "pack=pack", "tuned=x",
    ],
)  # fmt: skip
def test_settings_of_pretraining_are_unknown_in_fine_tuning(recipe: str, unknown: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'train\."):
        resolve(recipe, [f"train.{unknown}"])


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("align.dpo", ("train.loss.beta=0.5", "train.engine.threads=1", "prepare.held_out=0.1")),
        (
            "align.dpo",
            ("train.epochs=1.0", "train.lora=Lora", "train.lora.rank=4", "evaluate=none"),
        ),
        ("align.kto", ("train.seed=28", "reward=none", "audit=none")),
    ],
)
def test_what_is_read_or_repeats_a_default_is_accepted(
    model: str, tmp_path: Path, recipe: str, given: tuple[str, ...]
) -> None:
    check(tmp_path, recipe, f"run={model}", *OFFLINE, *given)


@pytest.mark.parametrize(
    ("recipe", "read"),
    [
        ("smoke", "report.redact=true"),
        ("compare.smoke", "report.rows=30"),
        ("corpus.demo", "report.examples=1"),
    ],
)
def test_settings_of_sections_that_a_page_has_are_accepted(
    tmp_path: Path, recipe: str, read: str
) -> None:
    check(tmp_path, recipe, read)


def test_a_value_with_the_effect_of_the_default_is_accepted(tmp_path: Path) -> None:
    check(tmp_path, "compare.smoke", "pretrain.sequences=49", "matched.tolerance=0.01")
    check(tmp_path, "demo", "tolerance=0.01", "execution.workers=1")


STUDY = '''"""A study of my own."""

from dataclasses import replace

from stamm.recipes.compare import Comparison
from stamm.recipes.comparisons import smoke as compared
from stamm.recipes.demo import smoke
from stamm.recipes.search import Search
from stamm.recipes.searches import smoke as searched
from stamm.recipes.study import Study


def study() -> Study:
    """As shipped, with a change."""
    base = smoke()
    pretrain = base.pretrain
    {change}


def comparison() -> Comparison:
    """As shipped, with a change."""
    base = compared()
    pretrain = base.pretrain
    {change}


def search() -> Search:
    """As shipped, with a change."""
    base = searched()
    compare = base.compare
    {change}
'''


def written(root: Path, recipe: str, change: str) -> None:
    """What a new run of a recipe in a user's file does before its first step."""
    file = root / "mine.py"
    file.write_text(STUDY.replace("{change}", change))
    RecipeRun(resolve(f"{file}:{recipe}", []), root / "run")


@pytest.mark.parametrize(
    ("recipe", "change", "unread"),
    [
        ("study", "replace(base, pretrain=replace(pretrain, {model}))", "pretrain.model.ffn.width"),
        ("study", "replace(base, export=None, exported=('relu2',))", "exported"),
        ("comparison", "replace(base, pretrain=replace(pretrain, seed=5))", "pretrain.seed"),
        ("comparison", "replace(base, pretrain=replace(pretrain, {peak}))", "pretrain.schedule.peak"),
        ("comparison", "replace(base, arms=(base.arms[0], {wide}))", "arms.1.ffn.width"),
        ("search", "replace(base, compare=replace(compare, seeds=(1, 5)))", "compare.seeds"),
    ],
)  # fmt: skip
def test_what_a_user_writes_into_a_recipe_and_no_step_reads_is_refused(
    tmp_path: Path, recipe: str, change: str, unread: str
) -> None:
    for name, text in {
        "{model}": "model=replace(pretrain.model, ffn=replace(pretrain.model.ffn, width=7))",
        "{peak}": "schedule=replace(pretrain.schedule, peak=0.5)",
        "{wide}": "replace(base.arms[1], ffn=replace(base.arms[1].ffn, width=7))",
    }.items():
        change = change.replace(name, text)
    with pytest.raises(
        ConfigError, match=rf"no step of this run reads {unread} \({unread} = .* in .*mine\.py\)"
    ):
        written(tmp_path, recipe, f"return {change}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["study", "comparison"])
def test_a_shipped_recipe_in_a_user_s_file_is_accepted(tmp_path: Path, recipe: str) -> None:
    written(tmp_path, recipe, "return base")


def test_a_configuration_that_is_passed_is_checked_as_a_file_is(tmp_path: Path) -> None:
    base = smoke()
    wrong = replace(base, pretrain=replace(base.pretrain, seed=5))
    with pytest.raises(ConfigError, match=r"no step of this run reads pretrain\.seed"):
        run(wrong, out=tmp_path / "run")


def test_a_setting_that_one_comparison_of_a_search_reads_is_accepted(tmp_path: Path) -> None:
    """The first round has its rate; the second tunes."""
    check(tmp_path, "search.smoke", "compare.tuning.margin=0.1")
    with pytest.raises(ConfigError, match=r"no step of this run reads compare\.seeds"):
        check(tmp_path, "search.smoke", "compare.seeds=1,5")


CONTINUED = {  # of a run that was trained, which tests/cli does
    "corpus.replay",
    "pretrain.cooldown",
    "pretrain.forget",
    "pretrain.longer",
    "pretrain.apertus_8b_longer",
}


def needed(recipe: str, model: str, folder: Path) -> list[str]:
    """Settings without which a shipped recipe has no steps."""
    text, hosts = folder / "text.jsonl", folder / "hosts.txt"
    text.write_text('{"text": "A text.", "label": "good"}\n' * 4)
    hosts.write_text("example.org\n")
    agent = ["agent=Mine/1.0", "contact=https://example.org"]
    given = {
        "train.own": [f"inputs={text}"],
        "align.demo": [f"run={model}"],
        "align.charter": [f"answers={text}", "judge=LocalJudge", f"judge.model={model}"],
        "adapt.activation": [f"run={model}", "activation=relu2"],
        "adapt.carve": [f"run={model}"],
        "adapt.sparsify": [f"run={model}", "activation=relu2"],
        "adapt.stress": [f"run={model}"],
        "align.grpo": [f"run={model}", *GRPO],
        "corpus.robots": [f"domains={hosts}", *agent],
        "corpus.classifier": ["classifier=ClassifierConfig", f"classifier.labelled={text}"],
        "corpus.languages": ["languages=LanguageTrainConfig", f"languages.inputs={text}"],
        "corpus.bounds": ["bounds=QualityFitConfig", f"bounds.inputs={text}"],
    }
    if recipe in given:
        return given[recipe]
    if recipe.startswith("align."):
        return [f"run={model}", *OFFLINE]
    return [f"pack={model}/pack"] if recipe.startswith("pretrain.") else []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [r.name for r in RECIPES if r.name not in CONTINUED])
def test_shipped_recipes_set_nothing_that_no_step_reads(
    model: str, tmp_path: Path, recipe: str
) -> None:
    """So a copy of one, `stamm cp`, is accepted, too."""
    base = resolve(recipe, needed(recipe, model, tmp_path))
    RecipeRun(replace(base, given=base.config, overrides=(), source="mine.py"), tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "changes", "unread"),
    [
        (ExportConfig(), ("target=gguf", "max_shard_bytes=4000"), "max_shard_bytes"),
        (ExportConfig(), ("max_shard_bytes=4000", "target=onnx"), "max_shard_bytes"),
        (ExportConfig(), ("bits_tolerance=0.1",), "bits_tolerance"),
        (ExportConfig(), ("target=gguf", "quantization=Q8_0", "tolerance=0.1"), "tolerance"),
        (ExportConfig(), ("samples=0", "prompt_tokens=8"), "prompt_tokens"),
        (AuditConfig(), ("passages=mine.jsonl", "candidates=9"), "candidates"),
    ],
)
def test_what_a_verb_does_not_read_is_refused(
    given: ExportConfig | AuditConfig, changes: tuple[str, ...], unread: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{unread} is not read .*\(set by {unread}="):
        changed(given, changes)


def test_a_change_leaves_settings_of_the_run_unread_without_an_error() -> None:
    stored = ExportConfig(max_shard_bytes=4000, prompt_tokens=8)
    assert changed(stored, ("target=gguf", "samples=0")).target == "gguf"
