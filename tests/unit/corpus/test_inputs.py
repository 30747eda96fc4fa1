"""Names that stand for inputs: files, folders, patterns, shipped data."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.corpus.inputs import expand, shipped_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b/2.jsonl", "b/1.jsonl.zst", "a/x.warc.gz", "a/notes.md", "b/deep/0.jsonl"):
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
    (tmp_path / "x.txt").touch()
    with pytest.raises(DataError, match=r"the folder .* holds no \.jsonl"):
        expand([str(tmp_path)], "corpus.inputs")
