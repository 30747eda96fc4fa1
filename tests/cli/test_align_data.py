"""Bad data of an alignment recipe: what is wrong, where, and how to correct it, in one message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.config import PrepareConfig
from stamm.align.steps import prepare_step
from stamm.base.config import override
from stamm.cli.main import main
from tests.unit.align.prepared import chat, write_rows
from tests.unit.untrained_run import untrained_run

GOOD = chat("2+2?", "4")
EMPTY, LONG = chat("2+2?", ""), chat("2+2?", "word " * 200)
PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
RATED = {"prompt": "2+2?", "completion": "4", "ref_rewards": [0.5]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An arm with a decoder of 160 tokens of context, and its tokenizer."""
    root = tmp_path_factory.mktemp("start")
    untrained_run(root)
    return root


def align(folder: Path, model: Path, recipe: str, rows: list[dict[str, Any]], *words: str) -> int:
    data = write_rows(folder / "rows.jsonl", rows)
    out = ("--out", str(folder / "run"))
    return main(["run", recipe, f"run={model}", f"data={data}", *words, *out])


@pytest.mark.parametrize(
    ("recipe", "rows", "words", "message"),
    [
        ("align.sft", [EMPTY], (), "no row is left to train on: 1 read, dropped: empty_answer 1"),
        ("align.sft", [LONG, LONG], (), "dropped: too_long 2"),
        ("align.sft", [GOOD], ("prepare.refused_licences=unknown",), "licence_unknown 1"),
        (
            "align.sft",
            [GOOD],
            ("prepare.refused_licences=sharealike",),
            "Did you mean 'share-alike'",
        ),
        ("align.sft", [PAIR], (), "a row of kind preference in data of kind chat"),
        ("align.sft", [GOOD, EMPTY], ("prepare.bad_rows=stop",), "an assistant's turn is empty"),
        ("align.sft", [GOOD, LONG], ("prepare.bad_rows=stop",), "tokens, context 160"),
        ("align.sft", [{"text": "?"}], (), "no known combination of columns: text"),
        (
            "align.sft",
            [GOOD, chat("3+3?", "6"), {"messages": [{"role": "wizard", "content": "?"}]}],
            (),
            "1 of 3 rows (33%) cannot be used, more than max_bad_rows = 0.2: message 1: unknown role",
        ),
        ("align.sft", [{**GOOD, "images": ["x.png"]}], (), "images = ['x.png'] is not text"),
        ("align.qrpo", [{**RATED, "reward": float("nan")}], (), "reward holds nan, which is not a"),
        ("align.dpo", [{**PAIR, "rejected": "4"}], (), "chosen and rejected are the same answer"),
    ],
)
def test_rows_that_cannot_be_used(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    rows: list[dict[str, Any]],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert align(tmp_path, model, recipe, rows, *words) in (1, 2)
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_files_that_are_not_there(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for data, message in (
        ("missing.jsonl", "missing.jsonl does not exist"),
        ("package:chat.jsonl.zst", "is not shipped with stamm"),
        ("", "data"),
    ):
        words = ["run", "align.sft", f"run={model}", "--out", str(tmp_path / "run")]
        assert main([*words, *([f"data={data}"] if data else [])]) in (1, 2)
        assert message in capsys.readouterr().err


def test_the_rows_of_a_failed_step_are_listed_and_found_in_the_ledger(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**LONG, "id": "long", "source": "s"}, {**EMPTY, "id": "empty", "source": "s"}]
    assert align(tmp_path, model, "align.sft", rows) == 1
    lines = (tmp_path / "run" / "data" / "bad_rows.jsonl").read_text().splitlines()
    found = [(line["row"], line["id"], line["reason"]) for line in map(json.loads, lines)]
    assert found == [(1, "long", "too_long"), (2, "empty", "empty_answer")]
    capsys.readouterr()
    assert main(["show", "ledger", str(tmp_path / "run"), "path=empty"]) == 0
    assert "empty_answer (an answer without content)" in capsys.readouterr().out


def test_an_evaluation_set_is_named_on_the_command_line_and_is_an_input(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "How many eggs do the ducks of the farm lay in a week of seven days?"
    sets = write_rows(tmp_path / "eval.jsonl", [{"q": question}])
    keys = ("name=eggs", f"file={sets}", "fields=q", "id=")
    words = [f"decontaminate.sets.0.{key}" for key in keys]
    words = ["decontaminate=ContaminationConfig", *words]
    prefixed = [f"prepare.{word}" for word in words]
    assert align(tmp_path, model, "align.sft", [chat(question, "49")], *prefixed) == 1
    assert "dropped: contaminated 1" in capsys.readouterr().err
    config = override(PrepareConfig(data=(sets,)), words)
    assert prepare_step(config, "tokenizer").external == {sets: Path(sets)}
    assert prepare_step(replace(config, data=()), "t", answers="a").external == {sets: Path(sets)}
