"""lm-evaluation-harness asks stamm's models, and agrees with stamm's own tasks item by item."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.evaluate import job
from stamm.evaluate.config import EvaluateConfig, task_inputs
from stamm.evaluate.harness_task import YAML_KEYS, _check_yaml
from stamm.evaluate.task_comparison import compare_folders
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


_OPENED: list[Path] = []
sys.addaudithook(
    lambda event, args: (
        _OPENED.append(Path(args[0]))
        if event == "open" and isinstance(args[0], str | os.PathLike)
        else None
    )
)


def test_every_file_that_a_yaml_task_opens_is_one_of_its_inputs(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """A group, its tasks, a file that they include, a module, and data named by a pattern."""
    folder = tmp_path / "tasks"
    (folder / "below").mkdir(parents=True)
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "helper.py").write_text("def asked(doc):\n    return doc['question']\n")
    base = CHOICE.format(data=f"{folder}/r*.jsonl").removeprefix("task: river\n")
    base = base.replace('doc_to_text: "{{question}}"', "doc_to_text: !function helper.asked")
    (folder / "_base").write_text(f"{base}description: '** Answer. **'\n")
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"task: {name}\ninclude: _base\n")
    group = folder / "both.yaml"
    group.write_text("group: both\ntask:\n  - one\n  - two\n")
    (folder / "below" / "unused.yaml").write_text("task: other\n")
    named = set(task_inputs((str(group),), None).values())
    used = {"both.yaml", "one.yaml", "two.yaml", "_base", "helper.py", "rows.jsonl"}
    assert {path.name for path in named} == used
    _OPENED.clear()
    evaluate(inputs, tmp_path / "out", str(group))
    opened = {path for path in _OPENED if path.is_relative_to(folder) and path.is_file()}
    # The harness looks for the names of tasks in every YAML file of the folder.
    assert opened - named <= {folder / "below" / "unused.yaml"}
    assert {path.name for path in opened} >= {"one.yaml", "helper.py"}


def test_corpus_bleu_is_that_of_sacrebleu(inputs: dict[str, Path], tmp_path: Path) -> None:
    name = written(tmp_path, "bleu.yaml", WRITTEN.replace("exact_match", "bleu"), more="")
    found = read_json(evaluate(inputs, tmp_path / "out", name) / "written.json")
    lines = (tmp_path / "out" / "written_items.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines]
    said, right = [one["filtered_resps"][0] for one in items], [one["target"] for one in items]
    expected = sacrebleu.corpus_bleu(said, [right]).score
    assert found["metrics"]["bleu"]["value"] == pytest.approx(expected, abs=1e-9)
    assert found["metric"] == ""  # no mean over items


@pytest.mark.parametrize("by_size", [True, False])
def test_a_group_has_the_mean_and_the_error_of_the_harness(
    inputs: dict[str, Path], tmp_path: Path, by_size: bool
) -> None:
    """Tasks of 3 and of 7 items, weighted by size or alike; two models are compared with these weights."""
    more = [{**row, "label": (row["label"] + n) % 2} for n, row in enumerate((*ROWS, ROWS[0]) * 2)][
        :7
    ]
    for name, rows in (("short", ROWS), ("long", more)):
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = CHOICE.format(data=data).replace("task: river", f"task: {name}")
        (tmp_path / f"{name}.yaml").write_text(text)
    aggregated = f"aggregate_metric_list:\n  - metric: acc\n    weight_by_size: {by_size}\n"
    group = tmp_path / "suite.yaml"
    group.write_text(f"task:\n  - short\n  - long\ngroup: suite\n{aggregated}")
    found = read_json(evaluate(inputs, tmp_path / "out", str(group)) / "suite.json")
    theirs = found["lm_eval"]["results"]
    parts = [theirs[name]["acc,none"] for name in ("short", "long")]
    assert parts[0] != parts[1]
    mean = (3 * parts[0] + 7 * parts[1]) / 10 if by_size else sum(parts) / 2
    assert (found["metric"], found["num_items"], next(iter(found["metrics"]))) == ("acc", 10, "acc")
    acc = found["metrics"]["acc"]
    assert acc["value"] == pytest.approx(mean, rel=1e-12)
    assert acc["value"] == pytest.approx(theirs["suite"]["acc,none"], rel=1e-12)
    assert acc["standard_error"] == pytest.approx(theirs["suite"]["acc_stderr,none"], rel=1e-12)
    half = (acc["interval_95"][1] - acc["interval_95"][0]) / 2
    assert half == pytest.approx(2.306004 * acc["standard_error"], rel=1e-6)  # Student, 8 degrees
    assert set(found["groups"]["task"]) == {"short", "long"}
    chances = [1 / len(row["choices"]) for row in (*ROWS, *more)]
    small, large = sum(chances[:3]) / 3, sum(chances[3:]) / 7
    assert acc["chance"] == pytest.approx(
        (3 * small + 7 * large) / 10 if by_size else (small + large) / 2
    )
    (tmp_path / "long.yaml").write_text(
        (tmp_path / "long.yaml").read_text().replace("metric: acc\n", "metric: acc_bytes\n")
    )
    with pytest.raises(ConfigError, match="acc is a metric of group suite, and task long has none"):
        evaluate(inputs, tmp_path / "other", str(group))
    again = tmp_path / "again.yaml"
    again.write_text(group.read_text())
    said = []
    for number, file in enumerate((group, again)):
        with pytest.raises(ConfigError) as error:
            evaluate(inputs, tmp_path / str(number), str(file))
        said.append(error.value.line())
    assert sum("both define suite" in line for line in said) == 1


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
def test_a_yaml_task_has_chance_blind_baselines_and_contamination(harness: Path) -> None:
    result, own = read_json(harness / "river.json"), read_json(harness / "own.json")
    assert (result["metric"], result["shots"], result["chat"]) == ("acc", 0, False)
    for name in ("acc", "acc_norm"):
        for key in ("value", "standard_error", "interval_95", "chance"):
            assert result["metrics"][name][key] == pytest.approx(own["metrics"][name][key])
    assert set(result["blind"]) == set(own["blind"])
    for name in ("longest", "shortest", "majority", "unigram", "answers_only"):
        assert result["blind"][name]["value"] == pytest.approx(own["blind"][name]["value"])
    for key in ("contaminated", "contamination", "truncated", "num_items"):
        assert result[key] == own[key]
    written = read_json(harness / "written.json")
    assert (written["metric"], set(written["blind"])) == ("exact_match", {"majority"})


@pytest.mark.slow
def test_two_models_are_compared_on_yaml_tasks(inputs: dict[str, Path], tmp_path: Path) -> None:
    river = written(tmp_path, "river.yaml", CHOICE)
    for name in ("a", "b"):
        evaluate(inputs, tmp_path / name, river)
    found, reasons = compare_folders(tmp_path / "a", tmp_path / "b")
    assert [(one.task, one.metric, one.items, one.difference) for one in found] == [
        ("river", "acc", 3, 0.0)
    ]
    assert not reasons


@pytest.mark.slow
def test_settings_of_the_run_are_those_of_the_harness(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    name = written(tmp_path, "river.yaml", CHOICE + "num_fewshot: 2\n")
    result = read_json(evaluate(inputs, tmp_path / "out", name) / "river.json")
    assert result["shots"] == 2
    assert "the examples of river are items that are asked" in result["warning"]
    (tmp_path / "more").mkdir()
    config = EvaluateConfig(threads=1, tasks=(name,), limit=2)
    job.run(config, Workspace(folder=tmp_path / "more", inputs=inputs))
    assert read_json(tmp_path / "more/river_limit2.json")["num_items"] == 2
    name = written(tmp_path, "river.yaml", CHOICE + "num_fewshot: 0\n")
    for settings, said in (
        ({"shots": 1}, "sets num_fewshot: 0, which the harness keeps"),
        ({"chat": True}, "chat = True is not supported for YAML tasks"),
    ):
        config = EvaluateConfig(threads=1, tasks=(name,), **settings)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=said):
            job.run(config, Workspace(folder=tmp_path / "more", inputs=inputs))


@pytest.mark.slow
def test_cut_contexts_of_a_yaml_task_are_counted(inputs: dict[str, Path], tmp_path: Path) -> None:
    template = CHOICE.replace('"{{{{question}}}}"', '"{{{{question * 80}}}}"')
    name = written(tmp_path, "river.yaml", template)
    result = read_json(evaluate(inputs, tmp_path / "out", name) / "river.json")
    assert result["truncated"] == 3
    assert (
        result["warning"].startswith("3 of 3 contexts were cut") or "; 3 of 3" in result["warning"]
    )


@pytest.mark.slow
def test_every_key_of_the_harness_is_known(inputs: dict[str, Path], tmp_path: Path) -> None:
    from lm_eval.config.task import TaskConfig

    known = YAML_KEYS.read | YAML_KEYS.harmless | YAML_KEYS.refused.keys()
    assert {one.name for one in dataclasses.fields(TaskConfig)} == known
    # Every optional key that is read or harmless, set at once.
    more = """task_alias: River
tag: rivers
metadata: {{version: 2.0}}
should_decontaminate: true
doc_to_decontamination_query: question
description: "Answer. "
fewshot_delimiter: "--"
fewshot_split: test
fewshot_config: {{sampler: first_n}}
num_fewshot: 1
target_delimiter: " "
repeats: 1
unsafe_code: false
"""
    name = written(tmp_path, "river.yaml", CHOICE + more)
    result = read_json(evaluate(inputs, tmp_path / "out", name) / "river.json")
    assert (result["shots"], result["num_items"]) == (1, 3)


@pytest.mark.slow
def test_completions_are_greedy(harness: Path) -> None:
    rows = items(harness / "written_items.jsonl")
    assert len(rows) == len(ROWS)
    assert all(row["values"].keys() == {"exact_match"} for row in rows)
    assert set(read_json(harness / "written.json")["metrics"]) == {"exact_match"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "more", "message"),
    [
        (WRITTEN, {"more": "do_sample: true"}, "answers are greedy"),
        (CHOICE.replace("{data}", "/absent.jsonl"), {}, "lm_eval refuses"),
        (CHOICE.replace("dataset_path: json", "dataset_path: a/b"), {}, "lm_eval refuses"),
        ("output_type: multiple_choice\n", {}, "names no task"),
        ("task: [a\n", {}, "lm_eval refuses task .*ParserError"),
        (CHOICE.replace("{{{{question}}}}", "{{{{question"), {}, r"TemplateSyntaxError.*bad\.yaml"),
        (
            CHOICE.replace("{{{{question}}}}", "{{{{quesion.strip()}}}}"),
            {},
            "'quesion' is undefined",
        ),
        (
            CHOICE.replace("target: label", 'target: "{{{{label + 1}}}}"'),
            {},
            "item 2 is 3, none of its 3",
        ),
        (CHOICE + "repeats: 3\n", {}, "repeats = 3 asks for several samples"),
        (CHOICE + "unsafe_code: true\n", {}, "unsafe_code = True asks to run code"),
        (CHOICE + "num_fewshots: 3\n", {}, "unexpected keyword argument 'num_fewshots'"),
        (WRITTEN, {"more": "num_beams: 4"}, "num_beams = 4 asks for beams"),
        (WRITTEN, {"more": "temperature: 0.7"}, "temperature = 0.7 asks for samples"),
        (WRITTEN, {"more": "stop_words: [a]"}, "stop_words is not known"),
        (WRITTEN.replace('["\\n"]', '[""]'), {"more": ""}, "until holds an empty text"),
    ],
)
def test_a_task_that_cannot_be_asked_is_one_clear_line(
    template: str, more: dict[str, str], message: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    name = written(tmp_path, "bad.yaml", template, **more)
    with pytest.raises(ConfigError, match=message) as caught:
        evaluate(inputs, tmp_path / "out", name)
    # The user's file, not the harness' or stamm's, and nothing on data where they are not at fault
    assert "bad.yaml" in str(caught.value) and "harness_task" not in str(caught.value)
    assert not list((tmp_path / "out").glob("*.json"))


@pytest.mark.parametrize("more", ["num_fewshot: 1\nnum_fewshot: 0\n", "include: base.inc\n"])
def test_a_key_given_twice_is_refused(more: str, tmp_path: Path) -> None:
    """The harness' parser takes the last value, in the file and in one that it includes."""
    (tmp_path / "base.inc").write_text("metadata:\n  - {num_fewshot: 1, num_fewshot: 2}\n")
    (tmp_path / "river.yaml").write_text(f"task: river\nprocess_docs: !function a.b\n{more}")
    with pytest.raises(ConfigError, match="two values for the key 'num_fewshot'"):
        _check_yaml(tmp_path / "river.yaml")


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
    from stamm.export.transformers_target import TransformersTarget
    from stamm.models.loading import with_tokenizer
    from stamm.models.serialization import load_decoder

    decoder = load_decoder(inputs["model"])
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
    model = HarnessModel(with_tokenizer(decoder, inputs["tokenizer"]), 1000)
    requests = [type("Request", (), {"args": pair})() for pair in pairs]
    ours = [score for score, _ in model.loglikelihood(requests)]
    assert ours == pytest.approx(theirs, rel=1e-5)
