"""`stamm evaluate`: Hugging Face folders, two models compared, every checkpoint, and the page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

from stamm.base.config import to_plain
from stamm.base.errors import RunError
from stamm.base.files import read_json, write_json
from stamm.base.receipts import is_covered
from stamm.cli.main import main
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.distributed import DistributedContext
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.results import read_curves
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.config import PeriodicEvaluation, PretrainConfig
from stamm.recipes.trained_models import settings_of
from stamm.runs.command_receipts import writing_alone
from stamm.runs.run import Run
from tests.conftest import environment
from tests.unit.tutorials import working_folder

HEADER = {"stamm_task": {"kind": "multiple_choice", "context": "{q}", "answer": "label"}}
ROWS = [
    {"q": f"{n} river is", "choices": ["wide", "<script>"], "label": n % 2, "language": "<b>en"}
    for n in range(6)
]


@pytest.fixture
def folder(inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    lines = [json.dumps(row) for row in (HEADER, *ROWS)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def other_model(folder: Path) -> Path:
    """A folder of transformers without a chat template, with a tokenizer that is not stamm's."""
    folder.mkdir()
    model = tokenizers.Tokenizer(tokenizers.models.BPE({}, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(["The river is wide and the road is long."] * 3, trainer)
    (folder / "tokenizer.json").write_text(model.to_str(), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"eos_token": {"content": "<|endoftext|>"}})
    config = DecoderConfig(
        vocab_size=320, d_model=32, num_layers=1, num_heads=4, num_kv_heads=2,
        ffn=GatedFFN(width=48), qk_norm=False, max_context=96, init_std=0.2,
    )  # fmt: skip
    write_json(folder / "config.json", hub_config(config, HubSpecialIds(begin=0, end=0, pad=0)))
    save_file(hub_state(build_decoder(config, seed=3)), folder / "model.safetensors")
    return folder


def test_a_hugging_face_folder_is_evaluated_and_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_model(folder / "other")
    command = ["evaluate", "other", "--against", "run", "tasks=held_out,mine.jsonl,blimp"]
    command += ["blimp_pairs_per_paradigm=1", "threads=1"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "evaluate other -> evaluations/other",
        "evaluate run -> run/evaluate",
    ]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tasks = {name: [one["task"] for one in each] for name, each in found["tasks"].items()}
    # A setting that is not the run's own is in the name.
    assert tasks == {"other": ["blimp_pairs1", "mine"], "run": ["blimp_pairs1", "held_out", "mine"]}
    differences = {one["task"]: one for one in found["differences"]}
    assert set(differences) == {"blimp_pairs1", "mine"}
    first = differences["blimp_pairs1"]
    assert (first["against"], first["items"]) == ("run", 67)
    (left_out,) = found["not_compared"]
    assert (left_out["task"], left_out["reason"]) == ("held_out", "only one of the two has results")
    # Results of other tasks in the folders are not shown.
    command[4:] = ["tasks=mine.jsonl", "threads=1"]
    assert main([*command, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert {name: [one["task"] for one in each] for name, each in alone["tasks"].items()} == {
        "other": ["mine"],
        "run": ["mine"],
    }
    assert [one["task"] for one in alone["differences"]] == ["mine"]
    item = json.loads((folder / "evaluations/other/mine_items.jsonl").read_text().splitlines()[0])
    assert "unigram" not in item["blind"]
    assert main(["evaluate", "other", "tasks=mine.jsonl", "chat=true"]) == 1
    assert "no chat template" in capsys.readouterr().err
    assert main(["evaluate", "other", "tasks=held_out"]) == 2
    assert "packed corpus" in capsys.readouterr().err
    assert main(["evaluate", "run", "--out", "x"]) == 1
    assert main(["evaluate", "nothing"]) == 1


def test_two_models_that_would_share_a_folder_of_results_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("one", "two"):
        (folder / place).mkdir()
        other_model(folder / place / "same")
    command = ["evaluate", "one/same", "--against", "two/same", "tasks=mine.jsonl", "threads=1"]
    assert main(command) == 1
    assert "one/same and two/same would both write to evaluations/same" in capsys.readouterr().err
    assert not (folder / "evaluations").exists()
    assert main([*command, "--out", "mine", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "evaluate one/same -> mine",
        "evaluate two/same -> evaluations/same",
    ]


def test_answers_end_where_transformers_ends_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_model(folder / "other")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(other / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(other)
    question = tokenizer("The river is", return_tensors="pt")
    begin = question["input_ids"].shape[1]
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    whole = model.generate(**question, **settings)[0, begin:].tolist()
    end = next(
        number for place, number in enumerate(whole) if place > 2 and number not in whole[:3]
    )
    rows = [{"q": "The river is", "answer": "x"}]
    task = {
        "stamm_task": {
            "kind": "generation",
            "context": "{q}",
            "answer": "answer",
            "max_new_tokens": 12,
        }
    }
    (folder / "written.jsonl").write_text("\n".join(map(json.dumps, (task, *rows))) + "\n")

    def output() -> tuple[str, list[int]]:
        assert main(["evaluate", "other", "tasks=written.jsonl", "threads=1"]) == 0
        results = folder / "evaluations" / "other"
        (line,) = (results / "written_items.jsonl").read_text().splitlines()
        return json.loads(line)["output"], read_json(results / "written.json")["stop_ids"]

    assert output() == (tokenizer.decode([n for n in whole if n != 0]), [0])
    write_json(other / "generation_config.json", {"eos_token_id": [0, end]})
    model = transformers.AutoModelForCausalLM.from_pretrained(other)
    cut = model.generate(**question, **settings)[0, begin:].tolist()
    assert (cut[-1], len(cut)) == (end, whole.index(end) + 1)
    assert output() == (tokenizer.decode(cut[:-1]), [0, end])  # also behind results that exist
    write_json(other / "generation_config.json", {"eos_token_id": "</s>"})
    assert main(["evaluate", "other", "tasks=written.jsonl"]) == 1
    assert "eos_token_id = '</s>' is neither an id nor a list of ids" in capsys.readouterr().err


def test_results_of_other_settings_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes in ([], ["limit=3"], ["chat=true"], ["tasks=held_out", "context=32"]):
        named = [] if "tasks=held_out" in changes else ["tasks=mine.jsonl"]
        assert main(["evaluate", "run", *named, *changes, "threads=1"]) == 0
    written = {path.stem: read_json(path) for path in (folder / "run/evaluate").glob("*.json")}
    assert set(written) == {"mine", "mine_limit3", "mine_chat", "held_out_context32"}
    assert all(name == stored["task"] for name, stored in written.items())
    assert (written["mine"]["num_items"], written["mine_limit3"]["num_items"]) == (6, 3)
    assert written["mine_chat"]["chat"]
    assert (written["mine_limit3"]["limit"], written["mine"]["limit"]) == (3, None)
    capsys.readouterr()
    for changes, said in (
        (["tasks=blimp", "limit=3"], "blimp is built in"),
        (["tasks=blimp", "chat=true"], "nothing of blimp is asked in a chat"),
        (["tasks=held_out,blimp", "shots=2"], "has no examples"),
        (["tasks=mine.jsonl", "rolling=harness"], "scores no whole texts"),
        (["tasks=blimp", "context=32"], "context = 32, and blimp has no windows"),
        (["tasks=mine.jsonl", "overlap=4"], "overlap = 4, and mine has no windows"),
        (["tasks=xcopa_slice", "shots_seed=4"], "has no examples with these settings"),
        (["tasks=xcopa_slice,held_out", f"task_folder={folder}"], "are not looked for in a folder"),
        (["tasks=mine.jsonl", "blimp_pairs_per_paradigm=3"], "mine is not blimp"),
    ):
        assert main(["evaluate", "run", *changes]) == 2
        assert said in capsys.readouterr().err


def test_every_checkpoint_is_evaluated_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_decoder(folder / "run" / "model")
    store = Checkpoints(folder / "run/checkpoints", 9, DistributedContext(torch.device("cpu")))
    updater = ShardedOptimizer(model, lambda shard: torch.optim.SGD(model.parameters()))
    for step in (5, 10):
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)
        store.save(step, model, updater, "")
    save_decoder(model, folder / "run" / "model")
    command = ["evaluate", "run", "checkpoints=all", "tasks=mine.jsonl", "threads=1"]
    assert main([*command, "--dry-run"]) == 0
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "run/curves"
    curves = folder / "run" / "curves"
    shas = {path.name: read_json(path / "mine.json")["model_sha256"] for path in curves.iterdir()}
    assert set(shas) == {"step-00000005", "step-00000010"}
    assert len(set(shas.values())) == 2
    # The last checkpoint has the weights of the model.
    assert main(["evaluate", "run", "tasks=mine.jsonl", "threads=1"]) == 0
    lines = [
        (place / "mine_items.jsonl").read_text()
        for place in (curves / "step-00000010", folder / "run" / "evaluate")
    ]
    assert lines[0] == lines[1]
    written = (curves / "step-00000005" / "mine.json").stat().st_mtime_ns
    shutil.rmtree(curves / "step-00000010")
    assert main(command) == 0
    assert (curves / "step-00000005" / "mine.json").stat().st_mtime_ns == written
    assert (curves / "step-00000010" / "mine.json").is_file()
    assert [step for step, _ in read_curves(folder / "run" / "curves")] == [5, 10]
    shutil.rmtree(folder / "run" / "checkpoints")
    assert main(command) == 1
    assert "holds no checkpoints" in capsys.readouterr().err


def test_one_task_of_an_arm_is_evaluated_by_one_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, results = Run(folder / "run", "", (), None), folder / "run" / "evaluate"
    results.mkdir(exist_ok=True)
    shutil.copy(folder / "mine.jsonl", folder / "other.jsonl")
    with run.locked(shared=True), writing_alone(results, "mine"):
        assert main(["evaluate", "run", "tasks=other.jsonl", "threads=1"]) == 0
        assert main(["evaluate", "run", "tasks=mine.jsonl", "threads=1"]) == 1
        assert "another process writes mine in" in capsys.readouterr().err
        with pytest.raises(RunError, match="another process uses"), run.locked():
            pass
    with run.locked():
        assert main(["evaluate", "run", "tasks=mine.jsonl", "threads=1"]) == 1
        assert "another process uses run" in capsys.readouterr().err
    assert main(["evaluate", "run", "tasks=mine.jsonl", "threads=1"]) == 0
    assert not list(results.glob(".*"))


@pytest.mark.slow
def test_evaluations_of_other_tasks_run_side_by_side(folder: Path) -> None:
    """Three processes at a time: the files, and receipts for all of them, as one after the other."""
    names = ("one", "two", "three")
    for name in names:
        shutil.copy(folder / "mine.jsonl", folder / f"{name}.jsonl")
    command = [sys.executable, "-m", "stamm", "evaluate", "run", "threads=1"]
    for _ in range(2):
        started = [
            subprocess.Popen(
                [*command, f"tasks={name}.jsonl"],
                env=environment(),
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]
        for process in started:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    results = folder / "run" / "evaluate"
    lines = {(results / f"{name}_items.jsonl").read_bytes() for name in names}
    assert len(lines) == 1
    assert all(is_covered(results / f"{name}.json") for name in names)
    assert all(is_covered(results / f"{name}_items.jsonl") for name in names)


def test_results_of_a_hugging_face_folder_have_a_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_model(folder / "other<b>")
    text = "It was the best of times <script>alert(1)</script> and the worst of times. "
    lines = [json.dumps({"text": text * 6, "repeats": 4 * (n % 2)}) for n in range(6)]
    (folder / "passages.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["evaluate", "other<b>", "tasks=mine.jsonl", "threads=1"]) == 0
    audit = ["passages=passages.jsonl", "prefix_tokens=20", "new_tokens=20", "grid=none"]
    assert main(["audit", "other<b>", *audit, "threads=1"]) == 0
    assert (folder / "evaluations/other<b>/audit/memorization.json").is_file()
    capsys.readouterr()
    assert main(["report", "evaluations/other<b>"]) == 0
    page = (folder / "evaluations/other<b>/report.html").read_text(encoding="utf-8")
    for part in ("Evaluation tasks", "Memorization", "other&lt;b&gt;", "unknown", "It was the"):
        assert part in page
    for part in ("<script", "How training went", "other<b>"):
        assert part not in page
    assert main(["report", "evaluations/other<b>", "redact=true", "--out", "page.html"]) == 0
    assert "It was the" not in (folder / "page.html").read_text(encoding="utf-8")
    assert main(["report", "evaluations/other<b>/audit", "--out", "audit.html"]) == 0
    assert "Evaluation tasks" not in (folder / "audit.html").read_text(encoding="utf-8")


def test_evaluation_during_training_is_not_taken_for_the_settings_of_the_verb(
    tmp_path: Path,
) -> None:
    """A recipe that is one training job has the key `evaluate`, too."""
    during = to_plain(PretrainConfig(model=DecoderConfig(), evaluate=PeriodicEvaluation(every=5)))
    write_json(tmp_path / "config.json", {"config": during})
    assert settings_of(tmp_path, "evaluate", EvaluateConfig) == EvaluateConfig()
    write_json(tmp_path / "config.json", {"config": {"evaluate": {"shots": 2}}})
    assert settings_of(tmp_path, "evaluate", EvaluateConfig) == EvaluateConfig(shots=2)
