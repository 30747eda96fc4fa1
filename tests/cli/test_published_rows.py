"""Rows in the formats of published data sets, unchanged, through the recipes that train on them.

The rows are generated here; their columns are those on the cards of HuggingFaceH4/ultrafeedback_binarized,
Anthropic/hh-rlhf, Open-Orca/SlimOrca (ShareGPT), tatsu-lab/alpaca, trl-lib/kto-mix-14k, openai/gsm8k, and those
of OpenAI's fine-tuning API. Each format is a source of a mixture, whose record counts its rows.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.align.data.encoded import EncodedExamples
from stamm.align.records import PreparedSummary, SampleAnswersFile
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from tests.unit.untrained_run import untrained_run

pytestmark = pytest.mark.slow  # trains a model

Row = dict[str, Any]
Make = Callable[[int], Row]
ROWS = 12
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"name": "add", "arguments": '{"a": 1}'}


def user(k: int) -> Row:
    return {"role": "user", "content": f"What is {k}+1?"}


def says(text: str, **keys: Any) -> Row:
    return {"role": "assistant", "content": text, **keys}


def called(**keys: Any) -> list[Row]:
    return [{"role": "assistant", "content": None, **keys}]


CHATS: dict[str, Make] = {
    "sharegpt.jsonl": lambda k: {
        "id": f"s{k}",
        "conversations": [
            {"from": "system", "value": "Be brief.", "weight": None},
            {"from": "human", "value": f"And {k}+1?", "weight": 0.0},
            {"from": "gpt", "value": f"{k + 1}", "weight": 1.0},
        ],
    },
    "alpaca.json": lambda k: {
        "instruction": "Add the numbers.",
        "input": f"{k} and 1",
        "output": f"{k + 1}",
        "text": "Below is an instruction that describes a task.",
    },
    "prompt_response.jsonl": lambda k: {"prompt": f"{k}+1 is?", "response": f"{k + 1}"},
    "tools.jsonl": lambda k: {
        "messages": [
            user(k),
            *called(tool_calls=[{"id": "c", "type": "function", "function": CALL}]),
            {"role": "tool", "tool_call_id": "c", "content": f"{k + 1}"},
            says(f"It is {k + 1}."),
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
    },
    "legacy.jsonl": lambda k: {
        "messages": [
            user(k),
            *called(function_call=CALL),
            {"role": "function", "name": "add", "content": f"{k + 1}"},
            says(f"Then {k + 1}."),
        ],
        "functions": [{"name": "add", "parameters": SCHEMA}],
    },
    "hub.parquet": lambda k: {
        "prompt": f"What is {k}+1?",
        "prompt_id": f"p{k}",
        "messages": [user(k), says(f"Easy: {k + 1}."), user(k + 1), says(f"{k + 2}")],
        "tools": [],
    },
    "several_turns.jsonl": lambda k: {
        "prompt": [user(k), says(f"{k + 1}"), {"role": "user", "content": "And one more?"}],
        "completion": [says(f"{k + 2}.")],
    },
    "gsm8k.jsonl": lambda k: {"question": f"Ann has {k} and 1?", "answer": f"#### {k + 1}"},
}
PAIRS: dict[str, Make] = {
    "ultrafeedback.parquet": lambda k: {
        "prompt": f"What is {k}+1?",
        "prompt_id": f"p{k}",
        "chosen": [user(k), says(f"{k + 1}")],
        "rejected": [user(k), says(f"{k + 3}, maybe")],
        "messages": [user(k), says(f"{k + 1}")],
        "score_chosen": 8.5,
        "score_rejected": 4.0,
    },
    "hh.jsonl.gz": lambda k: {
        "chosen": f"\n\nHuman: Hi {k}\n\nAssistant: Hi!\n\nHuman: {k}+1?\n\nAssistant: {k + 1}",
        "rejected": f"\n\nHuman: Hi {k}\n\nAssistant: Hi!\n\nHuman: {k}+1?\n\nAssistant: No.",
    },
    "several_turns.json": lambda k: {
        "prompt": [user(k), says(f"{k + 1}"), {"role": "user", "content": "Sure?"}],
        "chosen": [says("Yes.")],
        "rejected": [says(f"No, {k}.")],
    },
    "orca.jsonl": lambda k: {
        "system": "Be brief.",
        "question": f"{k} plus 1?",
        "chosen": f"{k + 1}",
        "rejected": "I do not know.",
    },
}
LABELS: dict[str, Make] = {
    "numbers.jsonl": lambda k: {"prompt": f"{k}+1?", "completion": f"{k + 1}", "label": k % 2},
    "messages.parquet": lambda k: {
        "prompt": [user(k)],
        "completion": [says(f"{k + 1}.")],
        "label": k % 3 > 0,
    },
    "kto_tag.json": lambda k: {
        "conversations": [{"from": "human", "value": f"{k}?"}, {"from": "gpt", "value": f"{k}!"}],
        "kto_tag": k % 2 == 0,
    },
}
NAMED = {
    "gsm8k.jsonl": {"prompt": "question", "completion": "answer"},
    "orca.jsonl": {"prompt": "question"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a decoder of 640 tokens of context."""
    root = tmp_path_factory.mktemp("start")
    untrained_run(root)
    config = dataclasses.replace(load_decoder(root / "model").config, max_context=640)
    save_decoder(build_decoder(config, seed=2), root / "model")
    return root


def write(path: Path, rows: list[Row]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


@pytest.mark.parametrize(
    ("recipe", "formats", "measures"),
    [
        ("align.sft", CHATS, ("loss",)),
        ("align.dpo", PAIRS, ("loss", "accuracy", "margin")),
        ("align.kto", LABELS, ("loss",)),
    ],
)
def test_every_format_is_read_whole_and_the_run_ends_with_numbers_and_answers(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    formats: dict[str, Make],
    measures: tuple[str, ...],
) -> None:
    words = ["prepare.held_out=0.3", "evaluate=none", "audit=none", "export=none"]
    for number, (name, make) in enumerate(formats.items()):
        write(tmp_path / name, [make(k) for k in range(ROWS)])
        words.append(f"mixture.{number}.data={tmp_path / name}")
        named = NAMED.get(name, {})
        words += [f"mixture.{number}.fields.{field}={path}" for field, path in named.items()]
    out = tmp_path / "run"
    assert main(["run", recipe, f"run={model}", *words, "--out", str(out)]) == 0
    told = capsys.readouterr()
    summary = read_record(PreparedSummary, out / "data" / "summary.json")
    assert {Path(one.source).name: one.kept for one in summary.mixture} == dict.fromkeys(
        formats, ROWS
    )
    assert summary.dropped == {} and summary.unknown_keys == {}
    for name in formats:
        assert f"{name}: {ROWS} examples, {1 / len(formats):.1%}" in told.err
    arm = recipe.partition(".")[2]
    assert f"Learning rate 0.0001, the default for {arm.upper()} of a model that was" in told.err
    examples = {split: EncodedExamples.open(out / "data", split) for split in ("train", "held_out")}
    assert all(len(one.answers) for one in examples.values())
    file = read_record(
        SampleAnswersFile, out / "arms" / arm / "sample_answers" / "sample_answers.json"
    )
    assert len(file.answers) == 2 and all(one.held_out for one in file.answers)
    lines = told.out.splitlines()
    (table,) = [k for k, line in enumerate(lines) if line.startswith("on held-out rows")]
    rows = [line.split() for line in lines[table + 1 : table + 1 + len(measures)]]
    assert [row[:2] for row in rows] == [[f"{arm}:", measure] for measure in measures]
    assert all(row[2] != row[3] for row in rows)
    page = (out / "report.html").read_text()
    assert "On held-out rows, before and after" in page
    assert f"{arm}: answers before and after" in page
    for one in file.answers:
        assert f"{arm}, held out: {one.question}" in told.out
        assert one.question in page


def test_the_reasons_are_on_the_page_and_the_terminal_where_bad_rows_are_accepted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [PAIRS["ultrafeedback.parquet"](k) for k in range(ROWS)]
    write(tmp_path / "rows.jsonl", [*rows, *({"text": "?", "n": k} for k in range(ROWS))])
    words = ["run", "align.dpo", f"run={model}", f"data={tmp_path / 'rows.jsonl'}"]
    words += ["evaluate=none", "audit=none", "export=none", "--out", str(tmp_path / "run")]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "12 of 24 rows (50%) cannot be used, more than max_bad_rows = 0.2" in told
    assert "prepare.fields.prompt=NAME" in told
    assert main([*words, "prepare.max_bad_rows=1", "--restart"]) == 0
    warning = (
        "data: 12 of 24 rows (50.0 %) cannot be used: no known combination of columns: n, text"
    )
    assert warning in capsys.readouterr().out
    page = (tmp_path / "run" / "report.html").read_text()
    assert f'<p class="careful">{warning}' in page
    assert page.count('class="careful"') == 1
