"""SQL queries over all shards by duckdb, in bounded memory."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import disk_full_error, is_full
from stamm.base.receipts import check_file
from stamm.corpus.tables import write_batches

T = TypeVar("T")

_ROWS = 2048
_BATCH = 1 << 15
# What duckdb and Arrow raise for truncated or damaged files, missing columns and a full disk.
_UNREADABLE = (
    duckdb.OperationalError,
    duckdb.DataError,
    duckdb.BinderException,
    duckdb.InvalidInputException,
    pa.ArrowException,
    OSError,
)


class Query:
    """A database over Parquet files. Sorting and grouping spill to disk beyond the memory limit.

    Results must not depend on threads: order every result by columns that identify its rows. Values
    are passed by name ($seed), because question marks are not numbered in order of appearance.
    Every query raises DataError when a file cannot be read or lacks a column, and RunError when
    memory or disk are exhausted.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, spill: Path) -> None:
        self._connection = connection
        self._spill = spill

    def view(self, name: str, files: Sequence[Path], *, union: bool = False) -> None:
        """Create a view of Parquet files with the same columns, and a column `filename`.

        union   whether some may lack columns, which are null

        Raises   DataError when there is no file.
        """
        if not files:
            raise DataError(f"there is no file of {name}", fix="Run the step that writes it again")
        for file in files:
            check_file(file)
        listed = ", ".join(_quoted(_literal_path(file)) for file in files)
        self.run(
            f"create or replace view {name} as select * from "
            f"read_parquet([{listed}], filename=true, hive_partitioning=false, union_by_name={union})"
        )

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        """Execute a statement without a result."""
        with self._translated_errors():
            self._ask(sql, values)

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a result as a list; `stream` is for large results."""
        with self._translated_errors():
            rows: list[tuple[Any, ...]] = self._ask(sql, values).fetchall()
        return rows

    def numbers(self, sql: str) -> NDArray[np.int64]:
        """The only column of a result, as integers."""
        with self._translated_errors():
            (column,) = self._ask(sql).fetchnumpy().values()
        return np.asarray(column, dtype=np.int64)

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a result, fetched in batches.

        Edge     no other query can run until all rows are read
        """
        with self._translated_errors():
            asked = self._ask(sql, values)
        while rows := self._more(lambda: asked.fetchmany(_ROWS)):
            yield from rows

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a result as record batches. Until all are read only `insert` can run."""
        yield from self._read(self._reader(sql))

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert rows into a table that has the same columns and is not temporary."""
        with self._translated_errors(), self._connection.cursor() as cursor:
            cursor.register("rows_to_insert", rows)
            cursor.execute(f"insert into {table} from rows_to_insert")

    def write(self, sql: str, path: Path) -> None:
        """Write a result to a Parquet file, in order; duckdb's writer can hang on a full disk."""
        reader = self._reader(sql)
        write_batches(path, reader.schema, self._read(reader))

    def _reader(self, sql: str) -> pa.RecordBatchReader:
        with self._translated_errors():
            return self._connection.sql(sql).to_arrow_reader(_BATCH)

    def _read(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while (batch := self._more(lambda: next(reader, None))) is not None:
            yield batch

    def _ask(self, sql: str, values: Mapping[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(sql, dict(values) if values else None)

    def _more(self, fetch: Callable[[], T]) -> T:
        with self._translated_errors():
            return fetch()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the exceptions of duckdb into those of stamm."""
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise RunError(
                f"sorting and grouping ran out of memory: {_first_line(error)}",
                fix="Set memory_gib higher, or free some room on the disk of the run",
            ) from None
        except _UNREADABLE as error:
            if is_full(error):
                raise disk_full_error(self._spill) from None
            raise DataError(
                f"a table cannot be read: {_first_line(error)}",
                fix="Run the step that writes it again",
            ) from None
        except RuntimeError as error:
            if str(error) != "Query interrupted":  # raised for Ctrl-C
                raise
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def opened(
    folder: Path, memory_gib: float, threads: int, name: str = "", *, keep_order: bool = True
) -> Iterator[Query]:
    """A database that spills into a hidden folder below `folder`, which is removed at the end.

    name         distinguishes databases that are open in one folder at the same time
    keep_order   whether unsorted rows come in the order of their files; needs memory

    Edge   user settings and extensions are not read, and nothing is downloaded.
    """
    spill = folder / f".query{name}.part"
    shutil.rmtree(spill, ignore_errors=True)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{round(1024 * memory_gib)}MiB",
        "threads": threads,
        "temp_directory": str(spill),
        "preserve_insertion_order": keep_order,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    try:
        yield Query(connection, spill)
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


def pattern(text: str) -> str:
    """A pattern for duckdb's glob in which only * and ? are wildcards."""
    return re.sub(r"([\[\\])", r"[\1]", text)


def _literal_path(path: Path) -> str:
    """A path with * ? and [ escaped, which duckdb takes for patterns."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return visible(str(error).partition("\n")[0], 300)
