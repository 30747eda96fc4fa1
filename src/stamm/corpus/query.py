"""Questions over all shards at once, in bounded memory: the one door to duckdb."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from stamm.base.errors import DataError, RunError


class Query:
    """A database over Parquet files. Sorting and grouping spill to disk beyond the memory limit.

    Answers must not depend on threads: order every result by all that tells its rows apart. Values
    go in by name ($seed): question marks are not numbered in the order in which they stand.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def view(self, name: str, files: Sequence[Path]) -> None:
        """Name the rows of some Parquet files that have the same columns; `filename` is added.

        Raises   DataError when there is no file.
        """
        if not files:
            raise DataError(f"there is no file of {name}", fix="Run the step that writes it again")
        listed = ", ".join(_quoted(literal_path(file)) for file in files)
        self.run(
            f"create or replace view {name} as select * from read_parquet([{listed}], filename=true, hive_partitioning=false)"
        )

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        """Do something that has no answer.

        Raises   DataError when a file cannot be read, or lacks a column.
        """
        self._ask(sql, values)

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of an answer; for answers that are known to be small."""
        found: list[tuple[Any, ...]] = self._ask(sql, values).fetchall()
        return found

    def stream(
        self, sql: str, values: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of an answer, some thousand at a time."""
        asked = self._ask(sql, values)
        while rows := asked.fetchmany(8192):
            yield from rows

    def write(self, sql: str, path: Path) -> None:
        """Put the rows of an answer into a Parquet file, in their order."""
        self.run(f"copy ({sql}) to {_quoted(str(path))} (format parquet, compression zstd)")

    def _ask(self, sql: str, values: Mapping[str, Any] | None) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(sql, dict(values) if values else None)
        except duckdb.OutOfMemoryException as error:
            said = str(error).partition("\n")[0]
            raise RunError(
                f"sorting and grouping ran out of memory: {said}",
                fix="Set memory_gib higher, or free some room on the disk of the run",
            ) from None
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.BinderException) as error:
            said = str(error).partition("\n")[0]
            raise DataError(
                f"a table cannot be read: {said}", fix="Run the step that writes it again"
            ) from None


@contextlib.contextmanager
def opened(folder: Path, memory_gib: float, threads: int, name: str = "") -> Iterator[Query]:
    """A database that spills into a hidden folder below `folder`, which is removed at the end.

    name   tells apart databases that are open in one folder at the same time

    Edge   nothing is read from settings or extensions of the user, and nothing is fetched.
    """
    spill = folder / f".query{name}.part"
    shutil.rmtree(spill, ignore_errors=True)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{round(1024 * memory_gib)}MiB",
        "threads": threads,
        "temp_directory": str(spill),
        "preserve_insertion_order": True,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    try:
        yield Query(connection)
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


def literal_path(path: Path) -> str:
    """A path as it is: duckdb takes * ? and [ in names for patterns."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
