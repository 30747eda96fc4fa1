"""lm-evaluation-harness asks stamm's models, and agrees with stamm's own tasks item by item."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.evaluate import job
from stamm.evaluate.config import EvaluateConfig
from stamm.runs.job import Workspace

ROWS = [
    {"question": "The river is", "choices": ["wide", "a short note"], "label": 0},
    {"question": "Der Weg ist", "choices": ["weit", "breit", "lang"], "label": 1},
    {"question": "Trees", "choices": ["grow", "is long", "fiel Schnee"], "label": 2},
]
CHOICE = """task: river
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: label
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""
WRITTEN = """task: written
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 4
  {more}
metric_list:
  - metric: exact_match
"""


def evaluate(inputs: dict[str, Path], folder: Path, *tasks: str) -> Path:
    folder.mkdir()
    config = EvaluateConfig(threads=1, tasks=tasks)
    job.run(config, Workspace(folder=folder, inputs=inputs))
    return folder


def written(folder: Path, name: str, template: str, **more: Any) -> str:
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / name).write_text(template.format(data=data, **more))
    return str(folder / name)


@pytest.fixture(scope="module")
def harness(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the same questions as a YAML task of the harness and as a file of stamm's."""
    folder = tmp_path_factory.mktemp("harness")
    own = {"stamm_task": {"kind": "multiple_choice", "context": "{question}", "answer": "label"}}
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [own, *ROWS]))
    tasks = (
        str(folder / "own.jsonl"),
        written(folder, "river.yaml", CHOICE),
        written(folder, "written.yaml", WRITTEN, more="do_sample: false"),
    )
    return evaluate(inputs, folder / "out", *tasks)


def items(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_both_agree_item_by_item(harness: Path) -> None:
    theirs, ours = items(harness / "river_items.jsonl"), items(harness / "own_items.jsonl")
    assert len(theirs) == len(ours) == len(ROWS)
    for one, other in zip(sorted(theirs, key=lambda item: item["doc_id"]), ours, strict=True):
        log_probs = [float(response[0][0]) for response in one["resps"]]
        assert log_probs == pytest.approx(other["log_probs"], rel=1e-6)
        assert one["acc"] == other["values"]["acc"]
        assert one["acc_norm"] == other["values"]["acc_norm"]
    scores = read_json(harness / "river.json")["metrics"]
    expected = read_json(harness / "own.json")["metrics"]
    assert scores["acc"]["value"] == expected["acc"]["value"]


@pytest.mark.slow
def test_its_own_results_are_kept_without_the_machine(harness: Path) -> None:
    kept = read_json(harness / "river.json")["lm_eval"]
    assert {"results", "configs", "versions", "n-samples", "higher_is_better"} <= set(kept)
    assert not {"pretty_env_info", "config", "samples", "date", "git_hash"} & set(kept)


@pytest.mark.slow
def test_completions_are_greedy(harness: Path) -> None:
    rows = items(harness / "written_items.jsonl")
    assert len(rows) == len(ROWS)
    assert set(read_json(harness / "written.json")["metrics"]) == {"exact_match"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "more", "message"),
    [
        (WRITTEN, {"more": "do_sample: true"}, "answers are greedy"),
        (CHOICE.replace("{data}", "/absent.jsonl"), {}, "lm_eval refuses"),
        (CHOICE.replace("dataset_path: json", "dataset_path: a/b"), {}, "lm_eval refuses"),
        ("output_type: multiple_choice\n", {}, "names no task"),
    ],
)
def test_a_task_that_cannot_be_asked_is_one_clear_line(
    template: str, more: dict[str, str], message: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    name = written(tmp_path, "bad.yaml", template, **more)
    with pytest.raises(ConfigError, match=message):
        evaluate(inputs, tmp_path / "out", name)
    assert not list((tmp_path / "out").glob("*.json"))


def test_without_the_library_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from stamm.evaluate.harness_task import HarnessTask

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        HarnessTask(tmp_path / "river.yaml")
    assert "stamm[lm-eval]" in str(caught.value)


@pytest.mark.slow
def test_log_likelihoods_are_those_of_the_harness_own_model(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """lm_eval's `hf` model on the exported folder, in a process of its own."""
    from stamm.evaluate.harness_model import HarnessModel
    from stamm.evaluate.text_model import load_tokenizer, text_model
    from stamm.export.transformers_target import TransformersTarget
    from stamm.models.serialization import load_decoder

    decoder = load_decoder(inputs["model"])
    tokenizer = load_tokenizer(inputs["tokenizer"])
    folder = tmp_path / "exported"
    folder.mkdir()
    TransformersTarget().write(folder, decoder, inputs["tokenizer"] / "tokenizer.json")
    pairs = [(row["question"], f" {choice}") for row in ROWS for choice in row["choices"]]
    program = f"""
import json, os
os.environ["HF_HUB_OFFLINE"] = "1"
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
model = HFLM(pretrained={str(folder)!r}, device="cpu", dtype="float32", batch_size=4, add_bos_token=True)
asked = [Instance("loglikelihood", {{}}, tuple(pair), 0) for pair in {pairs!r}]
print("RESULT", json.dumps([score for score, _ in model.loglikelihood(asked)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.partition("RESULT ")[2])
    model = HarnessModel(text_model(decoder, tokenizer, inputs["tokenizer"], ""), 1000)
    requests = [type("Request", (), {"args": pair})() for pair in pairs]
    ours = [score for score, _ in model.loglikelihood(requests)]
    assert ours == pytest.approx(theirs, rel=1e-5)
