"""File names in capitals, as Windows and cameras write them, have the format of the small ending."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from stamm.align.data.dataset_reader import count_rows
from stamm.corpus.documents import (
    InputRecord,
)
from stamm.corpus.inputs import expand, skipped_files
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.evaluate.config import is_harness_file, is_task_file
from stamm.recipes.length import tokens_of_files

TEXT = "Copper bends. Iron does not.\n"
ROWS = "".join(json.dumps({"text": text}) + "\n" for text in (TEXT, "Two.")).encode()


def _tar() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        entry = tarfile.TarInfo("kit-1/kit.py")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    return held.getvalue()


def _zip() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("kit-1/kit.py", TEXT)
    return held.getvalue()


def _parquet() -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.table({"text": [TEXT, "Two."]}), held)
    return held.getvalue()


FILES = {
    "a.txt": TEXT.encode(),
    "a.md": TEXT.encode(),
    "a.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
    "a.jsonl": ROWS,
    "a.jsonl.gz": gzip.compress(ROWS, mtime=0),
    "a.jsonl.zst": zstandard.compress(ROWS),
    "a.json": json.dumps([{"text": TEXT}, {"text": "Two."}]).encode(),
    "a.parquet": _parquet(),
    "a.tar.gz": _tar(),
    "a.tgz": _tar(),
    "a.zip": _zip(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_records_are_those_of_the_small_ending(name: str, tmp_path: Path) -> None:
    records = []
    for spelling in (name, name.upper(), name.title()):
        place = tmp_path / spelling / spelling
        place.parent.mkdir()
        place.write_bytes(FILES[name])
        assert list(expand([str(place.parent)], "corpus.inputs").values()) == [place]
        assert skipped_files([str(place.parent)]) == {}
        read = [r for r in read_input(spelling, place, ReadLimits()) if isinstance(r, InputRecord)]
        records.append([record.content for record in read])
    assert records[0] and records[0] == records[1] == records[2]


def test_rows_of_conversations_and_estimates(tmp_path: Path) -> None:
    sizes = []
    for name in ("a.jsonl.gz", "A.JSONL.GZ", "a.parquet", "A.PARQUET"):
        (tmp_path / name).write_bytes(FILES[name.lower()])
        assert count_rows(tmp_path / name, ReadLimits()) == 2
        sizes.append(tokens_of_files([tmp_path / name]))
    assert sizes[0] == sizes[1] and sizes[2] == sizes[3]


def test_tasks() -> None:
    assert is_task_file("MINE.JSONL") and is_task_file("Mine.Json") and is_harness_file("A.YAML")
