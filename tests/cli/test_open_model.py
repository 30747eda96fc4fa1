"""Every door that takes a model opens every kind of folder alike: one table of doors and folders."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import stamm
from stamm.adapt import job as adapt_job
from stamm.adapt.config import ReplacementConfig
from stamm.align.judge.config import LocalJudge
from stamm.align.judge.job import load_local_judge
from stamm.align.sampling import sample_job
from stamm.base.console import NoProgress
from stamm.base.errors import StammError
from stamm.base.files import sha256_file, write_json
from stamm.cli.main import main
from stamm.export.transformers_target import write_chat_files, write_folder
from stamm.models import loading
from stamm.models.hub_folder import load_hub
from stamm.models.loading import OpenModel
from stamm.models.model_source import find_model
from stamm.models.reward_head import save_head
from stamm.models.serialization import load_decoder
from stamm.recipes.jobs import job
from stamm.recipes.start_model import start_model
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import HEAD
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder
from tests.unit.models.hub_models import base_tokenizer, hub_model
from tests.unit.untrained_run import untrained_run

pytestmark = pytest.mark.slow

TEXT = "The river is wide and the road is long. Trees grow, and the wind turns the mill. Hello!"
HUB = ("run/arms/a/export", "run/arms/a/export/transformers", "base", "chat")
PLACES = ("run", "run/arms/a", "run/arms/a/model", "runs/chat", *HUB)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one arm with its export, a base model, a chat model in two files, and its import."""
    root = tmp_path_factory.mktemp("models")
    (root / "made").mkdir()
    made = untrained_run(root / "made")
    arm, hub = root / "run" / "arms" / "a", root / "run" / "arms" / "a" / "export" / "transformers"
    shutil.copytree(made["model"], arm / "model")
    for name in ("tokenizer", "pack", "corpus"):
        shutil.copytree(made[name], root / "run" / name)
    for folder in (root / "run", arm):
        write_json(folder / "config.json", {})
    hub.mkdir(parents=True)
    tokenizer = root / "run" / "tokenizer" / "tokenizer.json"
    write_folder(hub, load_decoder(arm / "model"), tokenizer)
    write_chat_files(hub, tokenizer, 160)
    base_tokenizer(root / "base")
    hub_model(root / "base", "llama", torch.bfloat16)
    imported_folder(root / "chat", TEMPLATES["chatml"])
    hub_model(root / "chat", "qwen2", tie_word_embeddings=True)
    whole = load_file(root / "chat" / "model.safetensors")
    (root / "chat" / "model.safetensors").unlink()
    table = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(whole))}
    for file in set(table.values()):
        save_file({n: whole[n] for n in whole if table[n] == file}, root / "chat" / file)
    write_json(root / "chat" / "model.safetensors.index.json", {"weight_map": table})
    assert main(["import", str(root / "chat"), "--out", str(root / "runs" / "chat")]) == 0
    described = {"kind": "multiple_choice", "context": "{q}", "answer": "label"}
    files: dict[str, list[dict[str, Any]]] = {
        "task": [{"stamm_task": described}, {"q": TEXT, "choices": ["yes", "no"], "label": 0}],
        "passages": [{"text": TEXT * 2, "repeats": number} for number in range(2)],
        "prompts": [{"prompt": "Hello!"}],
        "answers": [{"prompt": "Hello!", "completion": "The mill."}],
    }
    for name, rows in files.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "text.txt").write_text(f"{TEXT}\n" * 20)
    texts = [json.dumps({"text": f"{TEXT} {number}"}) + "\n" for number in range(4)]
    (root / "texts.jsonl").write_text("".join(texts))
    return root


@pytest.fixture
def opened(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[OpenModel]:
    """The models that were opened, in a working folder of its own."""
    models: list[OpenModel] = []
    join = loading._joined

    def noted(*given: Any) -> OpenModel:
        models.append(join(*given))
        return models[-1]

    monkeypatch.setattr(loading, "_joined", noted)
    monkeypatch.chdir(tmp_path)
    sample_job._loaded.cache_clear()
    return models


class RefusedError(Exception):
    """A command ended with an error, whose line is on stderr."""


def run(*words: object) -> None:
    """A command; raises RefusedError for one that fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO("Hello!\n"))
        if main(list(map(str, words))):
            raise RefusedError


def score(path: Path, root: Path) -> None:
    source = find_model(path)
    head = torch.zeros(loading.config_of(source).d_model)
    save_head(head, source.model, source.weights_sha256)
    try:
        run("score", root / "answers.jsonl", "reward=ModelReward", f"reward.run={path}")
    finally:
        (source.model / HEAD).unlink()


def observe(path: Path, root: Path) -> None:
    for old in find_model(path).model.parent.glob("observe/*.json"):
        old.unlink()  # nothing is observed twice
    run("observe", path, f"text={root / 'text.txt'}", "tokens=64")


def adapt(path: Path, root: Path) -> None:
    source = find_model(path)
    name = "relu2" if loading.config_of(source).ffn.spec.name == "xielu" else "geglu"
    inputs = {"start": source.model, "tokenizer": source.tokenizer}
    settings = ReplacementConfig(activation=name, text=str(root / "texts.jsonl"), tokens=60)
    adapt_job.run(settings, Workspace(folder=Path("out"), inputs=inputs, progress=NoProgress()))


def start(path: Path, root: Path) -> None:
    """What the recipes of align begin with; a Hugging Face folder is imported first."""
    model = start_model(str(path), None, Path.cwd())
    for step in model.steps:
        places = {name: Path(place) for name, place in step.inputs.items()}
        workspace = Workspace(folder=Path(step.folder), inputs=places, progress=NoProgress())
        job(step.job)(step.config, workspace)
    loading.open_model(
        loading.ModelSource(model=Path(model.model), tokenizer=Path(model.tokenizer)), chat=True
    )


DOORS: dict[str, Callable[[Path, Path], object]] = {
    "load": lambda path, root: stamm.load(path),
    "evaluate": lambda path, root: run("evaluate", path, f"tasks={root / 'task.jsonl'}"),
    "audit": lambda path, root: run(
        "audit", path, f"passages={root / 'passages.jsonl'}", "prefix_tokens=3", "new_tokens=3"
    ),
    "observe": observe,
    "sample": lambda path, root: run(
        "sample", path, f"prompts={root / 'prompts.jsonl'}", "max_new_tokens=2"
    ),
    "chat": lambda path, root: run("chat", path, "max_new_tokens=2"),
    "judge": lambda path, root: load_local_judge(LocalJudge(model=str(path))),
    "score": score,
    "adapt": adapt,
    "start": start,
}


NO_CHAT = "has no chat template, and its special tokens match no known format"
REFUSED = {
    **{(door, "base"): NO_CHAT for door in ("sample", "chat", "judge", "score", "start")},
    ("score", "runs/chat"): "head.safetensors has no receipt",  # no step has written it
}


def ids(root: Path, *tokens: str) -> set[int]:
    tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    return {int(tokenizer.token_to_id(token)) for token in tokens}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_opens_every_folder_alike(
    door: str, place: str, root: Path, opened: list[OpenModel], capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = REFUSED.get((door, place))
    try:
        DOORS[door](root / place, root)
    except (StammError, RefusedError) as error:
        assert refusal is not None, capsys.readouterr().err
        assert refusal in f"{error} {capsys.readouterr().err}"
        return
    assert refusal is None
    assert len(opened) == 1
    (model,) = opened
    kind = "own" if place.startswith("run/") or place == "run" else Path(place).name
    tokenizer = root / ("run/tokenizer" if kind == "own" else kind)
    end = sorted(ids(tokenizer, "<|im_end|>"))[0] if kind == "chat" else 2
    prefix, begin = ((), end) if kind == "chat" else ((1,), 1)
    stops = {
        "own": {2, *ids(tokenizer, "<|assistant_end|>")} if kind == "own" else set(),
        "base": {2},
        "chat": {2, end, *ids(tokenizer, "<|endoftext|>")} if kind == "chat" else set(),
    }
    assert (model.prefix, model.begin, set(model.stop_ids)) == (prefix, begin, stops[kind])
    assert model.tokenizer.sha256 == sha256_file(tokenizer / "tokenizer.json")
    own = root / "run" / "arms" / "a" / "model"
    expected = load_decoder(own) if kind == "own" else load_hub(root / kind)
    found = model.decoder.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found[name], tensor), name
    assert model.sha256 == find_model(root / place).weights_sha256 or door == "start"
    assert (model.chat_format is None) == (kind == "base")


@pytest.mark.parametrize("place", HUB)
def test_an_export_of_a_hugging_face_folder_names_the_import(
    place: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(root / place)]) == 1
    assert f"Export the run that `stamm import {root / place}` makes" in capsys.readouterr().err


@pytest.mark.parametrize("place", [place for place in PLACES if place not in HUB])
def test_an_export_finds_the_arm(
    place: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(root / place), "--dry-run"]) == 0
    arm = root / ("runs/chat/arms/chat" if place == "runs/chat" else "run/arms/a")
    assert f"export {arm} -> {arm / 'export'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "door", ["load", "evaluate", "audit", "observe", "sample", "chat", "judge"]
)
def test_adapters_alone_are_no_model(
    door: str, root: Path, opened: list[OpenModel], capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(Path("adapter/adapter_config.json"), {"peft_type": "LORA"})
    with pytest.raises((StammError, RefusedError)) as error:
        DOORS[door](Path("adapter"), root)
    assert "adapter is an adapter, not a model" in f"{error.value} {capsys.readouterr().err}"
    assert not opened
