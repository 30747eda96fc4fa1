"""Corpus filters of the user's own: the tutorial's code by the command line, identity, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.cli.main import main
from stamm.corpus.adapters.document import check_files, filter_document
from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.corpus_filter import CorpusFilter, load_filters
from stamm.corpus.filter_job import screen_inputs
from stamm.corpus.reasons import REASONS
from stamm.corpus.tables import read_parts
from stamm.recipes.corpus_steps import corpus_steps
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from tests.unit.tutorials import tutorial_file

PLAIN = CorpusConfig(
    inputs=("none",), consent=ConsentConfig(unknown_host="allow"), language=None, held_out=0.0
)
FILTER = """
class Mine:
    name = "{name}"
    def __call__(self, document):
        {body}
"""
Row = dict[str, Any]
Write = Callable[..., str]
Build = Callable[[CorpusConfig], tuple[list[Row], list[Row], dict[str, Any]]]


def write_filter(folder: Path, body: str, name: str = "mine") -> str:
    path = folder / "mine.py"
    path.write_text(FILTER.format(name=name, body=body), encoding="utf-8")
    return f"{path}:Mine"


def rows(*texts: str) -> list[Row]:
    return [{"text": text, "url": f"https://a.org/{n}"} for n, text in enumerate(texts)]


def test_the_tutorials_filter_runs_from_the_command_line(
    tmp_path: Path,
    write_jsonl: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tutorial_file("corpus_filter", tmp_path / "mine.py")
    tables = [f"{n} {n + 1} 1848 37.5 2009 {n * n}" for n in range(40)]
    for part in ("a", "b"):
        prose = [f"Chapter {n} of part {part} is about rivers and lakes." for n in range(40)]
        write_jsonl(*rows(*prose, *tables), name=f"{part}.jsonl")
    command = ["run", "corpus.demo", "--out", "run", "corpus.filters=mine.py:TooManyDigits"]
    command += ["corpus.inputs=a.jsonl,b.jsonl", "corpus.quality=none", "corpus.dedup=none"]
    command += [
        "corpus.consent.unknown_host=allow",
        "tokenizer.vocab_size=350",
        "execution.workers=2",
    ]
    command += ["corpus.probes=none", "corpus.canaries=none", "corpus.pii.phone=false"]
    assert main(command) == 0
    summary = json.loads((tmp_path / "run" / "corpus" / "summary.json").read_text())
    assert summary["dropped_by_reason"]["too_many_digits"]["documents"] == 80
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "too many digits" in page
    cards = [p.read_text(encoding="utf-8") for p in (tmp_path / "run" / "evidence").glob("*.md")]
    assert any("dropped by the corpus filter of this name" in card for card in cards)
    capsys.readouterr()
    assert main(["show", "ledger", "run", "reason=too_many_digits", "limit=1"]) == 0
    shown = capsys.readouterr().out
    assert "dropped: too_many_digits (dropped by the corpus filter of this name)" in shown
    assert re.search(r"detail +\d+% digits", shown)


def test_a_filter_reads_the_text_as_kept_and_its_detail_is_cleaned(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    body = (
        "return None if 'keep' in document.text else document.text + document.host + '\\x1b' * 999"
    )
    inputs = write_jsonl(*rows("Please keep this text.", "Write to a@example.org, then."))
    documents, ledger, summary = build(
        replace(PLAIN, inputs=(inputs,), filters=(write_filter(tmp_path, body),))
    )
    assert [row["text"] for row in documents] == ["Please keep this text."]
    assert [row["reason"] for row in ledger] == ["", "mine"]
    detail = ledger[1]["detail"]
    assert detail.startswith("Write to <email-pii>, then.a.org\\x1b\\x1b")
    assert len(detail) == 200
    assert summary["n_in"] == summary["n_kept"] + summary["dropped_by_reason"]["mine"]["documents"]


def test_filters_apply_in_order_and_a_corpus_without_documents_says_why(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    first = tmp_path / "first.py"
    first.write_text(FILTER.format(name="first", body="return ''"), encoding="utf-8")
    second = write_filter(tmp_path, "raise AssertionError")
    config = replace(PLAIN, inputs=(write_jsonl(*rows("One text.")),))
    with pytest.raises(
        DataError, match=r"no document was kept of 1: first 1 \(dropped by the corpus"
    ):
        build(replace(config, filters=(f"{first}:Mine", second)))


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_changed_filter_does_shards_again(
    tmp_path: Path, write_jsonl: Write, workers: int
) -> None:
    inputs = tuple(write_jsonl(*rows(f"Text {n}."), name=f"{n}.jsonl") for n in "ab")
    folder = tmp_path / "screened"
    folder.mkdir()

    def screen(body: str) -> tuple[list[str], list[int]]:
        config = replace(PLAIN, inputs=inputs, filters=(write_filter(tmp_path, body),))
        place = Workspace(folder=folder, execution=LocalExecutor(workers=workers))
        screen_inputs(config.filter_config, place)
        manifests = sorted((folder / "manifests").iterdir())
        return (
            [row["reason"] for row in read_parts(folder, "ledger")],
            [path.stat().st_mtime_ns for path in manifests],
        )

    reasons, times = screen("return None")
    assert reasons == ["", ""]
    assert screen("return None") == (reasons, times)
    dropped, later = screen("return 'no'")
    assert dropped == ["mine", "mine"]
    assert all(new > old for new, old in zip(later, times, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_names_filter_document_and_line_and_loses_one_shard_only(
    tmp_path: Path, write_jsonl: Write, workers: int
) -> None:
    bad = write_jsonl(*rows("Fine.", "A bad text."), name="bad.jsonl")
    good = write_jsonl(*rows("Good."), name="good.jsonl")
    reference = write_filter(
        tmp_path,
        "return document.text.index('bad') and None if 'bad' in document.text and 1 / 0 else None",
    )
    config = replace(PLAIN, inputs=(bad, good), filters=(reference,))
    folder = tmp_path / "screened"
    folder.mkdir()
    place = Workspace(folder=folder, execution=LocalExecutor(workers=workers))
    with pytest.raises(RunError) as error:
        screen_inputs(config.filter_config, place)
    line = error.value.line()
    assert re.search(r"screen: 1 of 2 shards failed: 00000 \(.*bad\.jsonl\)", line)
    assert re.search(
        r"corpus filter 'mine' failed on document [0-9a-f]{32}: ZeroDivisionError", line
    )
    assert f"{tmp_path / 'mine.py'}, line 5" in line
    assert sorted(p.stem for p in (folder / "manifests").iterdir()) == ["00001"]
    corrected = write_filter(tmp_path, "return None")
    screen_inputs(replace(config, filters=(corrected,)).filter_config, place)
    assert sorted(p.stem for p in (folder / "manifests").iterdir()) == ["00000", "00001"]


def test_a_result_of_another_type_is_refused(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    config = replace(PLAIN, inputs=(write_jsonl(*rows("One text.")),))
    with pytest.raises(
        RunError, match=r"corpus filter 'mine' returned bool for document [0-9a-f]{32}"
    ):
        build(replace(config, filters=(write_filter(tmp_path, "return True"),)))


def test_what_is_not_a_filter_is_refused_before_the_run(tmp_path: Path) -> None:
    def refused(reference: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            corpus_steps(replace(PLAIN, inputs=("package:pages.warc.gz",), filters=(reference,)))

    refused(f"{tmp_path}/none.py:Mine", r"none\.py does not exist")
    refused("no_such_package.module:Mine", r"no_such_package\.module cannot be imported")
    for name in ("too_short", "near_duplicate"):
        refused(write_filter(tmp_path, "return None", name), "is a reason of a built-in filter")
    for name in ("Too Short", "", "a" * 41, "../a"):
        refused(write_filter(tmp_path, "return None", name), "cannot be a reason of the ledger")
    mine = tmp_path / "mine.py"
    mine.write_text("class Mine:\n    name = 'mine'\nvalue = 3\n", encoding="utf-8")
    refused(f"{mine}:Mine", r"is not a corpus filter.*CorpusFilter declares: __call__, name")
    refused(f"{mine}:value", "is not a corpus filter")
    refused(f"{mine}:Other", "has no 'Other'")
    mine.write_text("class Mine(:\n", encoding="utf-8")
    refused(f"{mine}:Mine", r"SyntaxError.*mine\.py")
    with pytest.raises(ConfigError, match=r"must name Python classes: mine\.py:MyFilter"):
        replace(PLAIN, filters=("quality",))
    with pytest.raises(ConfigError, match="names a filter twice"):
        replace(PLAIN, filters=("a.py:A", "a.py:A"))


def test_two_filters_of_one_name_are_refused(tmp_path: Path) -> None:
    reference = write_filter(tmp_path, "return None")
    other = tmp_path / "other.py"
    other.write_text(FILTER.format(name="mine", body="return None"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is a reason of .*mine\.py:Mine"):
        load_filters((reference, f"{other}:Mine"))


def test_a_filter_is_an_external_file_of_the_step(tmp_path: Path) -> None:
    reference = write_filter(tmp_path, "return None")
    config = replace(PLAIN, inputs=("package:pages.warc.gz",), filters=(reference,))
    (screen,) = (step for step in corpus_steps(config) if step.name == "screen")
    assert screen.external[str(tmp_path / "mine.py")] == tmp_path / "mine.py"
    assert "mine" not in REASONS
    (found,) = load_filters((reference,))
    assert isinstance(found.function, CorpusFilter)


def test_an_adapter_applies_the_filters_too(tmp_path: Path) -> None:
    class Document:
        def __init__(self, text: str) -> None:
            self.text, self.metadata = text, {"url": "https://a.org/1"}

    config = replace(PLAIN, filters=(write_filter(tmp_path, "return 'short'"),)).filter_config
    check_files(config)
    document = Document("A text.")
    assert filter_document(document, config) == "mine"
    assert document.metadata["stamm_detail"] == "short"
