"""Names that stand for inputs: files, folders, patterns, shipped data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stamm.base.console import NoProgress
from stamm.base.errors import DataError
from stamm.corpus.config import CorpusConfig
from stamm.corpus.deletions import Deletions, read_deletions
from stamm.corpus.inputs import DEMO_INPUTS, expand, locate, shipped_files, skipped_files
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from tests.unit.small_corpus import build_corpus


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b/2.jsonl", "b/1.jsonl.zst", "a/x.warc.gz", "a/notes.pdf", "b/deep/0.jsonl"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_stands_for_what_can_be_read_below_it_by_name(folder: Path) -> None:
    found = expand(["in"], "corpus.inputs")
    assert list(found) == [
        "in/a/x.warc.gz",
        "in/b/1.jsonl.zst",
        "in/b/2.jsonl",
        "in/b/deep/0.jsonl",
    ]
    assert all(path.is_file() for path in found.values())


@pytest.mark.parametrize("absolute", [False, True])
def test_a_pattern_stands_for_its_files_by_name(folder: Path, absolute: bool) -> None:
    root = f"{folder}/" if absolute else ""
    assert list(expand([f"{root}in/b/*.jsonl"], "x")) == [f"{root}in/b/2.jsonl"]
    assert list(expand([f"{root}in/**/*.jsonl"], "x")) == [
        f"{root}in/b/2.jsonl",
        f"{root}in/b/deep/0.jsonl",
    ]


def test_shipped_names_and_files_keep_their_order(folder: Path) -> None:
    names = ["in/b/2.jsonl", f"package:{shipped_files()[0]}", "in/b/deep/0.jsonl"]
    assert list(expand(names, "x")) == names


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["in/b", "in/b/2.jsonl"], r"in/b/2\.jsonl is named twice \(corpus\.inputs\)"),
        (["in/*.parq*"], r"no file matches in/\*\.parq\*"),
        (["nothing"], "nothing does not exist"),
        (["package:nothing"], "is not shipped with stamm"),
    ],
)
def test_names_that_stand_for_nothing_are_told(
    folder: Path, names: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        expand(names, "corpus.inputs")


def test_a_folder_with_nothing_to_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").touch()
    with pytest.raises(
        DataError,
        match=r"the folder .* contains no \.jsonl.*; 1 file in folders is not read: \.pdf",
    ):
        expand([str(tmp_path)], "corpus.inputs")


@pytest.mark.parametrize("where", ["replay.deletions", "replay.domains", "corpus.consent.domains"])
def test_a_folder_of_text_lists_is_refused_without_archive_endings(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.jsonl").touch()  # of a folder, only such a file would be read
    with pytest.raises(DataError) as caught:
        expand([str(tmp_path)], where)
    assert f"is a folder, not a file ({where}). Name a file: text with" in str(caught.value)
    assert ".warc" not in str(caught.value)


@pytest.mark.parametrize("where", ["corpus.inputs", "replay.deletions"])
def test_a_pipe_is_not_a_regular_file(tmp_path: Path, where: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(
            DataError, match=rf"{name} is not a regular file, .*Save it as a file: "
        ):
            expand([name], where)


def test_the_shipped_requests_for_deletion_name_shipped_documents() -> None:
    requests = list(read_deletions([locate("package:deletions.txt", "replay.deletions")]))
    assert [request.kind for request in requests] == ["address", "identifier", "sha256"]
    deletions = Deletions(requests)
    found = {
        key
        for name in DEMO_INPUTS[:2]
        for record in read_input(name, locate(name, "x"), ReadLimits(), FieldNames(), "")
        for key in deletions.keys(record.url, record.content_id)
    }
    assert found == {request.key for request in requests}


def test_files_of_a_folder_that_are_not_read_are_counted_and_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "in/b/README").touch()
    (folder / "in/b/more.pdf").touch()
    for path in (folder / "in").rglob("*"):
        if path.is_file() and path.suffix in (".gz", ".zst"):
            path.unlink()
    (folder / "in/b/2.jsonl").write_text('{"text": "The text of a document."}\n')
    assert skipped_files(["in", "in/b/2.jsonl"]) == {".pdf": 2, "no ending": 1}
    (folder / "out").mkdir()
    told: list[str] = []
    monkeypatch.setattr(NoProgress, "log", lambda _, text: told.append(text))
    corpus = build_corpus(CorpusConfig(inputs=("in",), held_out=0.0), folder / "out")
    assert told == ["3 files in folders are not read: .pdf (2), no ending (1)"]
    summary = json.loads((corpus / "summary.json").read_text())
    assert summary["skipped_files"] == {".pdf": 2, "no ending": 1}
