"""Deterministic Parquet files, the same bytes for the same rows, and the schemas of ledger and documents."""

from __future__ import annotations

import bisect
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stamm.base.errors import DataError
from stamm.base.files import atomic
from stamm.base.receipts import check_file, check_present
from stamm.corpus.ledger import COLUMNS, RESERVED, LedgerRow

_TYPES = {"int": pa.int64(), "float": pa.float64()}


def columns(names: str) -> pa.Schema:
    """A schema of columns such as "url start:int64", which are texts without a type."""
    typed = (name.partition(":") for name in names.split())
    return pa.schema([(name, pa.type_for_alias(kind or "string")) for name, _, kind in typed])


LEDGER_SCHEMA = pa.schema(
    [(f.name, _TYPES.get(str(f.type), pa.string())) for f in fields(LedgerRow) if f.name in COLUMNS]
)

DOCUMENTS_SCHEMA = columns(
    "document_id text url source licence language split probe_id repeat:int64"
)
"""Documents kept. `repeat`: number of copies in the training stream; 1 unless it is a probe."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""Names of columns of filters; a ledger may come from anyone."""


def with_columns(columns: Mapping[str, object]) -> pa.Schema:
    """The schema of a ledger with further columns, which have the types of these values."""
    schema = LEDGER_SCHEMA
    for name, value in columns.items():
        schema = schema.append(pa.field(name, _TYPES.get(type(value).__name__, pa.string())))
    return schema


def schema_of(ledger: Path) -> pa.Schema:
    """The schema of a stored ledger: LEDGER_SCHEMA, and the columns that filters added.

    Raises   DataError as `stored_schema`.
    """
    stored, schema = stored_schema(ledger), LEDGER_SCHEMA
    for name in added_columns(stored.names):
        schema = schema.append(pa.field(name, stored.field(name).type))
    return schema


def added_columns(names: Iterable[str]) -> list[str]:
    """The columns of a ledger that a user's corpus filters added."""
    return [name for name in names if name not in (*COLUMNS, *RESERVED) and _NAME.fullmatch(name)]


Row = Mapping[str, Any]
_GROUP_ROWS = 2048
_GROUP_LETTERS = 32 * 2**20


class TableWriter:
    """Writes rows to a Parquet file, a group at a time. Use it inside base.files.atomic.

    A group ends with `group_rows` rows, or with the row that brings its texts and arrays to 32 Mi
    characters or bytes.
    """

    def __init__(self, path: Path, schema: pa.Schema, group_rows: int = _GROUP_ROWS) -> None:
        self._schema, self._names, self._group_rows = schema, schema.names, group_rows
        self._writer = _writer(path, schema)
        self._rows: list[Row] = []
        self._letters = 0
        self.count = 0

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, row: Row) -> None:
        """Append one row. Every column of the schema must be named; others are left out."""
        row = {name: row[name] for name in self._names}
        self._rows.append(row)
        self._letters += sum(map(_size, row.values()))
        self.count += 1
        if len(self._rows) >= self._group_rows or self._letters >= _GROUP_LETTERS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = {name: [row[name] for row in self._rows] for name in self._names}
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._rows, self._letters = [], 0


class RowGroups:
    """Random access to the rows of a Parquet file: the `kept` row groups read last are in memory.

    Raises   DataError as `read_table` does
    """

    def __init__(self, path: Path, columns: list[str], kept: int = 64) -> None:
        self._path, self._columns, self._kept = path, columns, kept
        check_file(path)
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from None
        metadata = self._file.metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._ends = list(itertools.accumulate(sizes))
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self) -> Iterator[pa.Table]:
        """The groups in order; none stays in memory."""
        return map(self._read, range(len(self._ends)))

    def row(self, place: int) -> dict[str, Any]:
        """The row at `place`, of 0 to len - 1."""
        number = bisect.bisect_right(self._ends, place)
        with self._lock:
            if number not in self._groups:
                self._groups[number] = self._read(number)
                if len(self._groups) > self._kept:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(number)
            group = self._groups[number]
        first = self._ends[number] - group.num_rows
        row: dict[str, Any] = group.slice(place - first, 1).to_pylist()[0]
        return row

    def _read(self, number: int) -> pa.Table:
        try:
            return self._file.read_row_group(number, columns=self._columns).combine_chunks()
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self._path, error) from None


def _size(value: object) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, str | bytes) else 0


def part(kind: str, shard: str) -> str:
    """The name of a shard's file of one kind: "documents-00007.parquet"."""
    return f"{kind}-{shard}.parquet"


def parts(folder: Path, kind: str) -> list[Path]:
    """The files of one kind in a folder, in the order of their shards.

    Raises   DataError when there is none.
    """
    check_present(folder, f"{kind}-[0-9]*.parquet")
    paths = sorted(folder.glob(f"{kind}-[0-9]*.parquet"))
    if not paths:
        raise DataError(
            f"{folder} contains no {part(kind, '00000')}", fix="Run the step that writes it again"
        )
    return paths


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Row]) -> int:
    """Write all rows to `path`; their number."""
    with TableWriter(path, schema) as writer:
        for row in rows:
            writer.add(row)
    return writer.count


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows to `path`, a group for each batch."""
    with _writer(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_whole(path: Path, schema: pa.Schema, rows: Iterable[Row]) -> None:
    """Write all rows to `path` atomically."""
    with atomic(path) as temporary:
        write_rows(temporary, schema, rows)


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The table in a Parquet file.

    Raises   DataError when the file is missing or not Parquet, or lacks a column.
    """
    check_file(path)
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def read_rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, a group at a time.

    Raises   DataError as `read_table` does.
    """
    check_file(path)
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):  # a batch would span many of them
                for batch in file.iter_batches(_GROUP_ROWS, row_groups=[group], columns=columns):
                    yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def stored_schema(path: Path) -> pa.Schema:
    """The schema of a Parquet file.

    Raises   DataError when it is missing or not Parquet.
    """
    check_file(path)
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def require_columns(path: Path, schema: pa.Schema) -> None:
    """Raise DataError when a Parquet file lacks a column of `schema`: another version wrote it."""
    stored_columns = set(stored_schema(path).names)
    missing = [name for name in schema.names if name not in stored_columns]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}: another version of stamm wrote it",
            fix="Build the corpus again with this version",
        )


def read_parts(
    folder: Path, kind: str, columns: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of all files of one kind in a folder; raises as `read_rows` and `parts`."""
    for path in parts(folder, kind):
        yield from read_rows(path, columns)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=3)


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} does not exist", fix="Run the step that writes it again")
    return DataError(
        f"{path} cannot be read: {error}", fix="Delete it and run the step that writes it again"
    )
