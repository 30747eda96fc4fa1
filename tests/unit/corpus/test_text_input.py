"""Plain text and JSON arrays as inputs: parts, encodings, shards, and folders with other files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.corpus.config import CorpusConfig
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.filter_job import filter_batch
from stamm.corpus.inputs import expand
from stamm.corpus.ledger import reason_text
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import PART_BYTES, read_input
from stamm.runs.job import Workspace

LONG = "\n\n".join(f"Paragraph {n} of a wörk.\n" + "words and more words\n" * 90 for n in range(60))


def read(path: Path) -> list[InputRecord | UnreadableRecord]:
    return list(read_input(path.name, path, ReadLimits()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_long_text_is_cut_at_blank_lines(tmp_path: Path, encoding: str, ends: str) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(LONG.replace("\n", ends).encode(encoding))
    parts = read(path)
    texts = [part.content.decode() for part in parts if isinstance(part, InputRecord)]
    assert len(texts) == len(parts) >= 4
    assert "".join("".join(texts).split()) == "".join(LONG.split())
    assert "\r" not in "".join(texts)
    assert all(text.startswith("Paragraph") for text in texts)
    assert all(len(text) < 2 * PART_BYTES for text in texts[:-1])
    assert [part.place.position for part in parts] == list(range(1, len(parts) + 1))


def test_a_short_text_is_one_document_and_nothing_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A title\n\nOne page.\n")
    (tmp_path / "b.txt").write_text("\n \n")
    (document,) = read(tmp_path / "a.md")
    assert isinstance(document, InputRecord)
    assert (document.content, document.url, document.source) == (
        b"# A title\n\nOne page.",
        "",
        "a.md",
    )
    assert read(tmp_path / "b.txt") == []


def test_no_character_is_cut_in_a_text_without_blanks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("語" * 40_000)
    parts = read(tmp_path / "a.txt")
    assert b"".join(part.content for part in parts).decode() == "語" * 40_000


def test_a_binary_file_under_a_text_ending_is_a_row_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\x7fELF\0\0\0")
    (record,) = read(tmp_path / "a.txt")
    assert isinstance(record, UnreadableRecord) and record.reason == "binary"
    assert "repository" not in reason_text(record.reason)


ROWS = [{"text": f'a "quoted" [list], {{braces}} \\ and \\\\ {"é" * n}', "n": [1, {"a": "]"}]} for n in range(3000, 3040)]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
def test_the_elements_of_an_array_are_documents(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text("\n " + json.dumps(ROWS, indent=indent) + "\n")
    records = read(path)
    assert [record.place.position for record in records] == list(range(1, len(ROWS) + 1))
    texts = [record.content.decode() for record in records if isinstance(record, InputRecord)]
    assert texts == [row["text"] for row in ROWS]


@pytest.mark.parametrize(
    ("content", "reasons"),
    [
        ('[{"text": "a"}, nonsense, {"text": "b"}]', ["", "invalid_json", ""]),
        ('[{"text": "a"}, {"text": "b"', ["", "invalid_json"]),
        ('[{"text": "a"}, {"text": "b"}', ["", "", "invalid_json"]),
        ('[{"text": "a"}] {"text": "b"}', ["", "invalid_json"]),
        ("[]", []),
        ('{\n  "text": "one"\n}', [""]),
        ('{"text": "a"}\n{"text": "b"}\n', ["", ""]),
    ],
)
def test_what_is_wrong_in_an_array_costs_that_element(
    tmp_path: Path, content: str, reasons: list[str]
) -> None:
    path = tmp_path / "folder.jsonl" / "a.json"
    path.parent.mkdir()
    path.write_text(content)
    records = list(read_input(str(path), path, ReadLimits()))
    assert [getattr(record, "reason", "") for record in records] == reasons


def test_an_element_beyond_the_limit_is_dropped_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "x" * 50_000}, {"text": "y"}]))
    first, second = read_input("a.json", path, ReadLimits(line_bytes=1000))
    assert isinstance(first, UnreadableRecord) and first.reason == "line_too_long"
    assert first.size > 50_000
    assert isinstance(second, InputRecord)


def test_text_files_share_a_shard_in_their_order(tmp_path: Path) -> None:
    names = ["a.txt", "b.md", "c.jsonl", "d.txt", "e.jsonl"]
    for name in names:
        (tmp_path / name).write_text("")
    config = CorpusConfig(inputs=(str(tmp_path),))
    shards = filter_batch(config, Workspace(folder=tmp_path, inputs={})).shards
    groups = [[Path(name).name for name in shard.extra["names"]] for shard in shards]
    assert groups == [["a.txt", "b.md"], ["c.jsonl"], ["d.txt"], ["e.jsonl"]]
    assert all(
        list(shard.inputs.values()) == list(map(str, shard.extra["names"])) for shard in shards
    )


def test_runs_and_hidden_files_in_a_folder_of_inputs_are_not_read(tmp_path: Path) -> None:
    for name in ("notes.txt", ".git/a.txt", "runs/one/config.json", "runs/one/steps/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert list(expand([str(tmp_path)], "corpus.inputs")) == [str(tmp_path / "notes.txt")]


def test_text_is_no_snapshot_of_robots(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("About these files.")
    (tmp_path / "robots.jsonl").write_text("")
    found = expand([str(tmp_path)], "corpus.consent.robots")
    assert list(found) == [str(tmp_path / "robots.jsonl")]
