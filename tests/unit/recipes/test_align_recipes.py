"""Steps of the alignment recipes: every input is made by an earlier step, and wrong requests are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stamm.align.losses.dpo import DPO, SimPO
from stamm.align.steps import StartModel
from stamm.align.training.config import (
    SFT,
    GRPOJobConfig,
)
from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.models.model_source import find_model
from stamm.pretrain.config import PeriodicEvaluation, PretrainConfig
from stamm.recipes import align, align_demo
from stamm.recipes.align import PreferenceRecipe
from stamm.recipes.align_results import arm_evaluation, arm_export, audit_steps
from stamm.recipes.resolve import build
from stamm.recipes.start_model import start_model
from stamm.recipes.step_kinds import STEP_KINDS
from stamm.runs.job import Step, after_producers
from tests.unit.untrained_run import untrained_run

PROMPTS = "package:align_prompts.jsonl.zst"
CHATS = "package:align_chats.jsonl.zst"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An arm of a run with an untrained model."""
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    return str(root)


def check(steps: tuple[Step, ...], root: Path) -> None:
    """Check that steps read what earlier ones wrote, or what exists, and wait for them."""
    made: dict[str, str] = {}
    before: dict[str, set[str]] = {}
    for step in after_producers(steps):
        assert step.job in STEP_KINDS, step.name
        assert step.name not in made
        for name, path in step.inputs.items():
            writers = [
                earlier
                for earlier, folder in made.items()
                if name != "run"
                and (Path(path) == Path(folder) or Path(folder) in Path(path).parents)
            ]
            if writers:
                waits = set(step.after).union(*(before[each] for each in step.after))
                assert set(writers) & waits, (step.name, name, path)
            else:
                assert (root / path).exists(), (step.name, name, path)
        assert set(step.after) <= made.keys(), step.name
        made[step.name] = step.folder
        before[step.name] = set(step.after).union(*(before[each] for each in step.after))


@pytest.mark.parametrize(
    "name", ["align.sft", "align.qrpo", "align.dpo", "align.rebel", "align.kto"]
)
def test_offline_recipes_prepare_train_and_report(model: str, tmp_path: Path, name: str) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("")
    recipe = build(name, f"run={model}", f"data={data}")
    steps = recipe.steps(tmp_path)  # type: ignore[union-attr, call-arg]
    check(steps, tmp_path)
    kinds = [step.job for step in steps]
    assert ("reference" in kinds) == (name != "align.sft")
    assert kinds.index("prepare") < kinds.index("finetune") < kinds.index("report")


def test_models_of_a_corpus_with_planted_passages_are_audited(model: str, tmp_path: Path) -> None:
    root = tmp_path / "planted"
    shutil.copytree(model, root)
    (root / "corpus" / "probes.json").write_text("{}")
    data = tmp_path / "rows.jsonl"
    data.write_text("")
    given = (f"run={root}", f"data={data}")
    for name, words in (
        ("align.sft", ()),
        ("align.dpo", (f"test_prompts={PROMPTS}", "reward=Length")),
    ):
        steps = build(name, *given, *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]
        check(steps, tmp_path)
        audits = {step.name: step for step in steps if step.job == "audit"}
        arm = name.removeprefix("align.")
        assert audits.keys() == {"audit.start", f"audit.{arm}"}
        assert audits["audit.start"].folder == "start_audit"
        compared = [step.inputs for step in steps if step.job == "answers"]
        assert [each["start_audit"] for each in compared] == ["start_audit"] * bool(words)

    def jobs(*words: str) -> list[str]:
        return [step.job for step in build("align.sft", *given, *words).steps(tmp_path)]  # type: ignore[union-attr, call-arg]

    assert "audit" not in jobs("audit=none")
    with pytest.raises(
        ConfigError, match="are 201 tokens, more than the model's max_context = 160"
    ):
        jobs("audit.prefix_tokens=100")
    steps = build("align.sft", *given, "audit.new_tokens=9").steps(tmp_path)  # type: ignore[union-attr, call-arg]
    assert {step.config.new_tokens for step in steps if step.job == "audit"} == {9}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate.chat=true",), "nothing of held_out is asked in a chat"),
        (("evaluate.shots=2",), "held_out has no examples"),
        (("evaluate.checkpoints=all",), "evaluates a finished run"),
    ],
)
def test_an_evaluation_that_would_be_refused_is_refused_before_training(
    model: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("")
    recipe = build("align.sft", f"run={model}", f"data={data}", "evaluate.tasks=held_out", *words)
    with pytest.raises(ConfigError, match=said):
        recipe.steps(tmp_path)  # type: ignore[union-attr, call-arg]


@pytest.mark.parametrize(
    ("recipe", "words", "own", "imported"),
    [
        ("align.sft", (), 1e-4, 5e-6),
        ("align.dpo", (), 1e-4, 5e-7),
        ("align.reward", (), 1e-4, 5e-6),
        ("align.sft", ("train.lora=Lora",), 1e-3, 5e-5),
        ("align.kto", ("train.lora=Lora",), 1e-3, 5e-6),
        ("align.sft", ("train.schedule.peak=3e-5", "train.lora=Lora"), 3e-5, 3e-5),
        ("align.dpo", ("train.schedule=Cosine", "train.schedule.peak=1e-4"), 1e-4, 1e-4),
    ],
)
def test_the_default_rate_follows_from_the_start_model(
    model: str, tmp_path: Path, recipe: str, words: tuple[str, ...], own: float, imported: float
) -> None:
    copied = tmp_path / "imported"
    shutil.copytree(model, copied)
    (copied / "import.json").write_text("{}")  # beside the tokenizer, as an import leaves it
    for run, rate in ((model, own), (str(copied), imported)):
        steps = build(recipe, f"run={run}", f"data={CHATS}", *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]
        (config,) = [step.config for step in steps if step.job == "finetune"]
        assert config.schedule.peak == pytest.approx(rate)
        assert bool(config.rate_from) != ("train.schedule.peak" in " ".join(words))


def test_a_mixture_takes_the_place_of_data(model: str, tmp_path: Path) -> None:
    words = [f"mixture.0.data={CHATS}", "mixture.0.weight=3", "mixture.0.fields.prompt=ask"]
    for recipe in ("align.sft", "align.dpo", "align.reward"):
        steps = build(recipe, f"run={model}", *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]
        (prepare,) = [step for step in steps if step.job == "prepare"]
        (source,) = prepare.config.mixture
        assert (source.weight, source.fields.prompt) == (3.0, "ask")
        assert list(prepare.external) == [CHATS]
        with pytest.raises(ConfigError, match="and mixture too: choose one"):
            build(recipe, f"run={model}", f"data={CHATS}", *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]


def test_simpo_computes_no_reference(model: str, tmp_path: Path) -> None:
    recipe = build("align.simpo", f"run={model}", f"data={CHATS}")
    assert "reference" not in [step.job for step in recipe.steps(tmp_path)]  # type: ignore[union-attr, call-arg]


@pytest.mark.parametrize(
    ("words", "beta"),
    [
        ((), 0.1),
        (("train.loss.transform=log",), None),
        (("train.loss.beta=5", "train.loss.normalize=beta", "train.loss.largest_beta=0.1"), None),
        (("train.loss.beta=5", "train.loss.largest_beta=0.1"), 0.1),
        (
            ("train.loss.beta=0.05", "train.loss.normalize=loss", "train.loss.largest_beta=0.1"),
            0.05,
        ),
    ],
)
def test_the_optimum_is_marked_where_all_answers_have_one_beta(
    model: str, tmp_path: Path, words: tuple[str, ...], beta: float | None
) -> None:
    given = (f"run={model}", f"prompts={PROMPTS}", "reward=Length", f"test_prompts={PROMPTS}")
    steps = build("align.qrpo", *given, *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]
    assert [step.config.beta for step in steps if step.job == "answers"] == [beta]


def test_a_probit_of_left_out_answers_needs_one_reference_more(model: str, tmp_path: Path) -> None:
    given = (f"run={model}", f"data={CHATS}", "train.loss.transform=probit")
    for words, least in (((), 3), (("train.loss.leave_one_out=true",), 4)):
        steps = build("align.qrpo", *given, *words).steps(tmp_path)  # type: ignore[union-attr, call-arg]
        assert [s.config.min_references for s in steps if s.job == "prepare"] == [least]


def test_rounds_sample_the_newest_policy_and_keep_the_reference(model: str, tmp_path: Path) -> None:
    recipe = build(
        "align.qrpo", f"run={model}", f"prompts={PROMPTS}", "reward=Length", "rounds=2",
        f"test_prompts={PROMPTS}", "gold=Stopped",
    )  # fmt: skip
    steps = recipe.steps(tmp_path)  # type: ignore[union-attr, call-arg]
    check(steps, tmp_path)
    named = {step.name: step for step in steps}
    start = named["sample.round1"].inputs["model"]
    assert named["sample.round2"].inputs["model"] == "arms/qrpo-round1/model"
    assert named["finetune.qrpo"].inputs["start"] == "arms/qrpo-round1/model"
    assert named["finetune.qrpo"].inputs["reference_model"] == start
    assert named["reference.qrpo"].inputs["start"] == start
    assert named["select.round2"].inputs["references"] == "scored/round1/scored.jsonl"
    assert "references" not in named["select.round1"].inputs
    seeds = {named[f"sample.round{number}"].config.seed for number in (1, 2)}
    assert len(seeds) == 2
    assert named["answers.qrpo"].inputs["gold"] == "gold/qrpo/scored.jsonl"


def test_the_demo_trains_and_tunes_all_objectives_alike(model: str, tmp_path: Path) -> None:
    for overrides in ((), (f"run={model}",)):
        steps = build("align.demo", *overrides).steps(tmp_path)  # type: ignore[union-attr, call-arg]
        check(steps, tmp_path)
        trained = [step for step in steps if step.job == "finetune"]
        counts = [
            sum(step.name.startswith(f"finetune.{name}") for step in trained)
            for name in ("qrpo", "dpo", "simpo", "rebel")
        ]
        assert counts == [3, 3, 3, 3]
        data = {step.inputs["data"] for step in trained if step.name != "finetune.sft"}
        start = {step.inputs["start"] for step in trained if step.name != "finetune.sft"}
        assert len(data) == len(start) == 1


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["run="], "run is empty"),
        (["run=nowhere", f"data={CHATS}"], "nowhere is not a folder"),
        ([], "data and prompts are empty"),
        ([f"prompts={PROMPTS}"], "reward = None is needed with prompts"),
        ([f"prompts={PROMPTS}", f"data={CHATS}", "reward=Length"], "and data too: choose one"),
        ([f"data={CHATS}", "rounds=2"], "rounds = 2 needs prompts"),
        ([f"prompts={PROMPTS}", "reward=Length", "n=4"], r"n = 4 must exceed select\.candidates"),
        ([f"data={CHATS}", "context=100000"], "context = 100000 exceeds the model's max_context"),
        (
            [f"data={CHATS}", "select.take=all"],
            "take=all makes single answers, and DPO needs pairs",
        ),
        ([f"data={CHATS}", "train.loss=SFT"], "is SFT: use align.sft"),
    ],
)
def test_wrong_requests_are_refused(
    model: str, tmp_path: Path, overrides: list[str], problem: str
) -> None:
    run = [] if overrides and overrides[0].startswith("run=") else [f"run={model}"]
    data = [f"data={CHATS}"] if overrides == ["run="] else []
    with pytest.raises(Exception, match=problem):
        build("align.dpo", *run, *overrides, *data).steps(tmp_path)  # type: ignore[union-attr, call-arg]


def test_a_recipe_is_refused_with_the_loss_of_another() -> None:
    for recipe in ("align.sft", "align.grpo", "align.reward"):
        with pytest.raises(
            ConfigError, match=r"Recipe\.train\.loss = DPO\(.*\) is DPO: use align\.dpo"
        ):
            build(recipe, "train.loss=DPO")
    for loss, use in (("SFT", "sft"), ("GRPO", "grpo"), ("BradleyTerry", "reward")):
        with pytest.raises(ConfigError, match=rf"Recipe\.train\.loss = .* use align\.{use} "):
            build("align.kto", f"train.loss={loss}")
    with pytest.raises(ConfigError, match=r"SFT: use align\.sft"):
        PreferenceRecipe(train=align.sft().train)
    assert isinstance(align.simpo().train.loss, SimPO)
    assert isinstance(align.dpo().train.loss, DPO)
    assert isinstance(align_demo.align_demo().sft.loss, SFT)


@pytest.mark.parametrize(
    ("more", "peak", "remark"),
    [
        ([], 1e-6, "Learning rate 1e-06, the default for GRPO of any model: "),
        (
            ["train.lora=Lora"],
            1e-5,
            "Learning rate 1e-05, the default for GRPO of LoRA on any model: ",
        ),
        (["train.lora=Lora", "train.schedule.peak=3e-3"], 3e-3, ""),
        (["train.schedule=ConstantRate", "train.lora=Lora"], 1e-3, ""),
    ],
)
def test_the_rate_of_grpo_is_ten_times_as_much_with_lora(
    model: str, tmp_path: Path, more: list[str], peak: float, remark: str
) -> None:
    words = [f"run={model}", f"prompts={PROMPTS}", "reward=Length", "sampling.max_new_tokens=32"]
    steps = build("align.grpo", *words, *more).steps(tmp_path)  # type: ignore[union-attr, call-arg]
    (config,) = (step.config for step in steps if isinstance(step.config, GRPOJobConfig))
    assert config.schedule.peak == pytest.approx(peak, rel=1e-12)
    assert config.rate_remark().startswith(remark) and bool(remark) == bool(config.rate_remark())
    warmup = config.schedule.warmup_sequences
    assert warmup == (0 if "train.schedule=ConstantRate" in more else 160)


def test_a_step_has_every_file_of_the_user_as_an_input(model: str, tmp_path: Path) -> None:
    """Task files and their data, passages, answers, a classifier, an export target, a judge's files."""
    paths = {}
    for name in ("rows.jsonl", "data.jsonl", "passages.jsonl", "answers.jsonl", "target.py"):
        paths[name] = tmp_path / name
        paths[name].write_text("")
    task = tmp_path / "mine.json"
    task.write_text(json.dumps({"kind": "generation", "file": "data.jsonl"}))
    toxic = tmp_path / "toxic"
    start = StartModel(
        name="start", model="m", tokenizer="t", max_context=2000, pack="p", corpus="c"
    )
    evaluated = arm_evaluation("arm", EvaluateConfig(tasks=(str(task),)), start)
    assert set(evaluated.external.values()) == {task, paths["data.jsonl"]}
    config = AuditConfig(
        passages=str(paths["passages.jsonl"]),
        answers=str(paths["answers.jsonl"]),
        toxicity_classifier=str(toxic),
    )
    for step in audit_steps("arm", config, start):
        assert set(step.external.values()) == {
            paths["passages.jsonl"], paths["answers.jsonl"],
            toxic / "classifier.json", toxic / "weights.safetensors",
        }  # fmt: skip
    with pytest.raises(ConfigError, match=r"audit.reference = x is not read in a recipe"):
        audit_steps("arm", AuditConfig(reference="x"), start)
    export = arm_export("arm", ExportConfig(target=f"{paths['target.py']}:Target"), start)
    assert set(export.external.values()) == {paths["target.py"]}
    trained = PretrainConfig(evaluate=PeriodicEvaluation(tasks=(str(task),)))
    assert set(trained.user_files().values()) == {task, paths["data.jsonl"]}


def test_an_imported_start_has_its_chat_format_and_end_tokens_as_inputs(
    model: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(model, root)
    before = set(start_model(str(root), None, tmp_path).external)
    source = find_model(str(root))
    for name in ("tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (source.tokenizer / name).write_text("{}")
        before.add(str(source.tokenizer / name))
    assert set(start_model(str(root), None, tmp_path).external) == before
