"""Look-up in the ledger of a run: decision, opt-out signal and token ranges of documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.ledger import ALIGNMENT, LATER_COLUMNS
from stamm.corpus.query import Query, opened, pattern
from stamm.corpus.tables import LEDGER_SCHEMA, added_columns, parts, stored_schema
from stamm.runs.run_sharded import cores

COLUMNS = (
    "url", "path", "document_id", "host", "decision", "reason", "language", "licence", "source",
    "consent", "agent", "input_file", "split", "probe_id", "duplicate_of",
)  # fmt: skip
"""Columns by which documents are looked up, beside those of a user's filters. A value may contain * and ?."""

_ORDER = ("url", "document_id", "input_file", "input_position")
_MEMORY_GIB = 1.0
_SET_ASIDE = "set-aside"
_RELEASED = "documents"
_NOT_RELEASED = {"input_file": "", "input_position": 0, "path": ""}
"""Columns that the ledger of a release lacks, with the value of its rows."""


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

    Raises   ConfigError for a column that is not searched; DataError when there is no ledger.
    """
    files = ledger_files(run)
    added = list(
        dict.fromkeys(name for file in files for name in added_columns(stored_schema(file).names))
    )
    known = (*COLUMNS, *added)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ConfigError(
            f"the ledger has no column {unknown[0]!r} to search", fix=nearest(unknown[0], known)
        )
    clauses = [
        f"coalesce(\"{name}\"::varchar, '') {_operator(value)} ${name}"
        for name, value in wanted.items()
    ]
    where = " and ".join(clauses) or "true"
    values = {
        name: pattern(value) if _operator(value) == "glob" else value
        for name, value in wanted.items()
    }
    with (
        tempfile.TemporaryDirectory() as spill,
        opened(Path(spill), _MEMORY_GIB, cores()) as query,
    ):
        query.view("ledger", files, union=True)
        ledger_columns = {column for column, *_ in query.rows("describe ledger")}
        absent = LATER_COLUMNS | (_NOT_RELEASED if is_released(run) else {})
        names = [
            name for name in LEDGER_SCHEMA.names if name in ledger_columns or name not in absent
        ]
        ((count,),) = query.rows(f"select count(*) from ledger where {where}", values)
        columns = ", ".join(f'"{name}"' for name in (*names, *added))
        rows = query.rows(
            f"select {columns} from ledger where {where} "
            f"order by {', '.join(name for name in _ORDER if name in names)} limit {int(limit)}",
            values,
        )
        matches = [
            absent
            | {
                name: value
                for name, value in zip((*names, *added), row, strict=True)
                if value is not None or name not in (*added, *absent)
            }
            for row in rows
        ]
        stretches = _token_ranges(query, run, [row["document_id"] for row in matches])
    for row in matches:
        row["tokens"] = stretches.get(row["document_id"], []) if row["decision"] == "kept" else []
    return LedgerMatches(count=count, rows=tuple(matches))


def ledger_files(run: Path) -> list[Path]:
    """The ledgers of a run: of its corpus, and of each folder of prepared alignment data.

    Edge     of a release: the ledger that it publishes, which has the kept documents of its corpus
    Raises   DataError when there is neither.
    """
    if is_released(run):
        return parts(released_root(run) / _RELEASED, "ledger")
    corpus = parts(run / "corpus", "ledger") if (run / "corpus").is_dir() else []
    ledgers = [*run.glob(f"*/{ALIGNMENT}-*.parquet"), *run.glob(f"*/*/{ALIGNMENT}-*.parquet")]
    prepared = sorted(path for path in ledgers if path.relative_to(run).parts[0] != _SET_ASIDE)
    if not corpus and not prepared:
        raise DataError(
            f"{run} contains neither a corpus nor prepared alignment data",
            fix="Name the folder of a run that has one",
        )
    return [*corpus, *prepared]


def is_released(run: Path) -> bool:
    """Whether a folder is a release, or the run folder in one, and not the run that was released."""
    return (released_root(run) / "release.json").is_file()


def released_root(run: Path) -> Path:
    """The folder of the release that `run` is the run folder of; `run` itself for any other folder."""
    above = run.resolve().parent
    within = run.resolve().name == "run" and (above / "release.json").is_file()
    return above if within else run


def _operator(value: str) -> str:
    return "glob" if "*" in value or "?" in value else "="


def _token_ranges(
    query: Query, run: Path, identifiers: list[str]
) -> dict[str, list[dict[str, Any]]]:
    if not identifiers:
        return {}
    if is_released(run):
        return _ordered_ranges(query, released_root(run) / "run" / "pack", identifiers)
    sidecars = sorted((run / "pack").glob("*-[0-9]*.documents.parquet"))
    if not sidecars:
        return {}
    query.view("sidecars", sidecars)
    return _by_document(
        query.rows(
            "select document_id, regexp_extract(filename, '([a-z_]+-\\d+)\\.documents', 1) as shard, "
            "start, stop from sidecars where list_contains($identifiers, document_id) "
            "order by document_id, shard, start",
            {"identifiers": identifiers},
        )
    )


def _ordered_ranges(
    query: Query, pack: Path, identifiers: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Token ranges by the order that a release publishes; it has no token files, so that a split is one shard."""
    rows: list[tuple[Any, ...]] = []
    for path in sorted(pack.glob("order-*.parquet")):
        query.view("placed", [path])
        rows += query.rows(
            "select document_id, $split, stop - tokens, stop from (select document_id, tokens, "
            "sum(tokens) over (order by number)::bigint as stop from placed) "
            "where list_contains($identifiers, document_id) order by document_id, stop",
            {"identifiers": identifiers, "split": path.stem.removeprefix("order-")},
        )
    return _by_document(rows)


def _by_document(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[dict[str, Any]]]:
    ranges: dict[str, list[dict[str, Any]]] = {}
    for document, shard, start, stop in rows:
        ranges.setdefault(document, []).append({"shard": shard, "start": start, "stop": stop})
    return ranges
