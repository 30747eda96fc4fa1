"""Tables on disk: groups that end by rows or by text, read back one at a time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.corpus import tables
from stamm.corpus.documents import InputRecord
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.tables import read_rows, write_rows

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("key", pa.binary())])


def groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


def rows_of_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gains the rows of each batch that is read from now on."""
    seen: list[int] = []
    batches = pq.ParquetFile.iter_batches

    def counted(self: pq.ParquetFile, *args: object, **named: object) -> object:
        for batch in batches(self, *args, **named):
            seen.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    return seen


def test_a_group_ends_by_rows_or_by_text(tmp_path: Path) -> None:
    def row(letters: int) -> dict[str, object]:
        return {"name": "x" * letters, "size": letters, "key": None}

    write_rows(tmp_path / "short", SCHEMA, (row(n % 5) for n in range(5000)))
    assert groups(tmp_path / "short") == [2048, 2048, 904]
    eighth = 32 * 2**20 // 8
    write_rows(tmp_path / "long", SCHEMA, [row(eighth)] * 20)
    assert groups(tmp_path / "long") == [8, 8, 4]
    # A text longer than a group is a group of its own, and bytes count as letters do.
    write_rows(tmp_path / "mixed", SCHEMA, [row(1), row(9 * eighth), row(1)])
    assert groups(tmp_path / "mixed") == [2, 1]
    keys = [{"name": "", "size": 0, "key": b"k" * (4 * eighth)}] * 5
    write_rows(tmp_path / "keys", SCHEMA, keys)
    assert groups(tmp_path / "keys") == [2, 2, 1]


def test_rows_come_back_in_order_and_never_more_than_a_group_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_GROUP_LETTERS", 100)
    rows = [{"name": f"{n:020d}", "size": n, "key": None} for n in range(50)]
    write_rows(tmp_path / "t", SCHEMA, rows)
    assert groups(tmp_path / "t") == [5] * 10
    seen = rows_of_batches(monkeypatch)
    assert list(read_rows(tmp_path / "t")) == rows
    assert seen == [5] * 10


def test_long_texts_of_an_input_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{n:03d}" * 700_000 for n in range(40)]  # 2 MiB each
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet", use_dictionary=False)
    seen = rows_of_batches(monkeypatch)
    path = tmp_path / "in.parquet"
    found = list(read_input("in.parquet", path, ReadLimits(), FieldNames()))
    assert [r.content.decode() for r in found if isinstance(r, InputRecord)] == texts
    assert max(seen) <= 32
