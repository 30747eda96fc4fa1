"""Look-up in the ledger of a run: decision, opt-out signal and token ranges of documents."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.ledger import ALIGNMENT, LATER_COLUMNS, LEDGER_SCHEMA
from stamm.corpus.query import Query, opened, pattern
from stamm.corpus.tables import parts
from stamm.runs.run_sharded import cores

COLUMNS = (
    "url", "path", "document_id", "host", "decision", "reason", "language", "licence", "source",
    "consent", "agent", "input_file", "split", "probe_id", "duplicate_of",
)  # fmt: skip
"""Columns by which documents are looked up. A value may contain the wildcards * and ?."""

_MEMORY_GIB = 1.0
_SET_ASIDE = "set-aside"


@dataclass(frozen=True, kw_only=True)
class LedgerMatches:
    """Documents of a ledger.

    count    number of matching documents; `rows` has the first of them
    rows     ledger rows, each with "tokens": its ranges in the packed corpus
    """

    count: int
    rows: tuple[dict[str, Any], ...]


def look_up(run: Path, wanted: Mapping[str, str], limit: int) -> LedgerMatches:
    """The documents and alignment rows of a run's ledgers with the wanted values, sorted by URL.

    Raises   ConfigError for an unknown column; DataError when there is no ledger.
    """
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"the ledger has no column {unknown[0]!r} to search", fix=nearest(unknown[0], COLUMNS)
        )
    files = ledger_files(run)
    clauses = [f"coalesce({name}, '') {_operator(value)} ${name}" for name, value in wanted.items()]
    where = " and ".join(clauses) or "true"
    values = {
        name: pattern(value) if _operator(value) == "glob" else value
        for name, value in wanted.items()
    }
    with (
        tempfile.TemporaryDirectory() as spill,
        opened(Path(spill), _MEMORY_GIB, cores()) as query,
    ):
        query.view("ledger", files)
        there = {column for column, *_ in query.rows("describe ledger")}
        names = [name for name in LEDGER_SCHEMA.names if name in there or name not in LATER_COLUMNS]
        ((count,),) = query.rows(f"select count(*) from ledger where {where}", values)
        rows = query.rows(
            f"select {', '.join(names)} from ledger where {where} "
            f"order by url, document_id, input_file, input_position limit {int(limit)}",
            values,
        )
        found = [LATER_COLUMNS | dict(zip(names, row, strict=True)) for row in rows]
        stretches = _token_ranges(query, run, [row["document_id"] for row in found])
    for row in found:
        row["tokens"] = stretches.get(row["document_id"], []) if row["decision"] == "kept" else []
    return LedgerMatches(count=count, rows=tuple(found))


def ledger_files(run: Path) -> list[Path]:
    """The ledgers of a run: of its corpus, and of each folder of prepared alignment data.

    Raises   DataError when there is neither.
    """
    corpus = parts(run / "corpus", "ledger") if (run / "corpus").is_dir() else []
    found = [*run.glob(f"*/{ALIGNMENT}-*.parquet"), *run.glob(f"*/*/{ALIGNMENT}-*.parquet")]
    prepared = sorted(path for path in found if path.relative_to(run).parts[0] != _SET_ASIDE)
    if not corpus and not prepared:
        raise DataError(
            f"{run} contains neither a corpus nor prepared alignment data",
            fix="Name the folder of a run that has one",
        )
    return [*corpus, *prepared]


def _operator(value: str) -> str:
    return "glob" if "*" in value or "?" in value else "="


def _token_ranges(
    query: Query, run: Path, identifiers: list[str]
) -> dict[str, list[dict[str, Any]]]:
    sidecars = sorted((run / "pack").glob("*-[0-9]*.documents.parquet"))
    if not sidecars or not identifiers:
        return {}
    query.view("sidecars", sidecars)
    found: dict[str, list[dict[str, Any]]] = {}
    for document, shard, start, stop in query.rows(
        "select document_id, regexp_extract(filename, '([a-z_]+-\\d+)\\.documents', 1) as shard, "
        "start, stop from sidecars where list_contains($identifiers, document_id) "
        "order by document_id, shard, start",
        {"identifiers": identifiers},
    ):
        found.setdefault(document, []).append({"shard": shard, "start": start, "stop": stop})
    return found
