"""Which documents of a whole corpus say the same, and which one of them stays.

Works outside of memory: tables are sorted and joined by duckdb within a limit, on disk beyond it.
Only documents that have a near duplicate are held, at 16 bytes each. What comes out depends on
the documents alone, not on shards, their order or names, threads or memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import atomic
from stamm.corpus.duplicates.config import DuplicatesConfig
from stamm.corpus.duplicates.minhash import NOTHING, Signature
from stamm.corpus.query import literal_path
from stamm.corpus.tables import TableWriter

Ranks = NDArray[np.int64]

UNDATED = "9999"
EXACT, NEAR = "exact", "near"
_BYTES = 4  # of one value of a signature
_BATCH = 1 << 14


def keys_schema(config: DuplicatesConfig) -> pa.Schema:
    """The columns of a shard's table of keys, one row per document; made with `keys_row`."""
    return pa.schema(
        [
            ("shard", pa.int32()),
            ("row", pa.int64()),
            ("document_id", pa.string()),
            ("date", pa.string()),
            ("text_key", pa.binary(16)),
            ("signature", pa.binary(_BYTES * config.hashes)),
        ]
    )


CLUSTERS_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("row", pa.int64()),
        ("document_id", pa.string()),
        ("kept_id", pa.string()),
        ("kept", pa.bool_()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
    ]
)
"""Every row that is not alone, by shard and row. `kept_id` names its cluster, `kind` how the row
came into it ("exact", "near", "" for the one kept), `rows` how many the cluster has."""


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """What was found in all shards. Counts of rows, but for `pairs` compared and `clusters`."""

    rows: int
    exact: int
    near: int
    pairs: int
    clusters: int


def keys_row(
    *, shard: int, row: int, document_id: str, date: str, key: bytes, signature: Signature
) -> dict[str, Any]:
    """One row of a shard's table of keys. `key` is `exact.text_key` of the same text."""
    return {
        "shard": shard,
        "row": row,
        "document_id": document_id,
        "date": date,
        "text_key": key,
        "signature": signature.astype("<u4").tobytes(),
    }


def find_clusters(
    config: DuplicatesConfig,
    shards: Sequence[Path],
    result: Path,
    *,
    scratch: Path,
    memory_mib: int = 4096,
    threads: int = 1,
) -> Clusters:
    """Write to `result` each row that has duplicates, with the one that is kept of them.

    Of a cluster the row with the smallest (date, document_id) is kept; no date counts as 9999.
    Rows with one identifier are ordered by shard and row.

    shards      tables of `keys_schema`
    scratch     an existing folder for up to four times the size of the shards, freed again
    memory_mib  for duckdb; comparison and union-find come on top (16 bytes a near duplicate)

    Edge     Two texts are compared when all hashes of a band agree. Where more than `neighbours`
             others share that band, it is sorted by the next hashes of the signature, and each text
             is compared with those just before it: a pair can be missed in such a band, and is then
             found in another, or through a third text like both, or not at all.
             Clusters are connected components, so their ends may be less alike than `threshold`.
             Texts without words have exact duplicates only.
    Raises   DataError when a shard is missing or is no such table, RunError when memory or disk
             does not suffice.
    Checked  tests/unit/corpus/duplicates/test_cluster.py
    """
    with _database(scratch, memory_mib, threads) as base:
        _read_shards(base, config, shards)
        pairs = _compare(base, config)
        _join_components(base)
        return _write(base, result, pairs)


@contextmanager
def _database(scratch: Path, memory_mib: int, threads: int) -> Iterator[duckdb.DuckDBPyConnection]:
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".clusters-") as folder:
        base = duckdb.connect(
            config={
                "memory_limit": f"{memory_mib}MiB",
                "threads": threads,
                "temp_directory": folder,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        try:
            yield base
        except duckdb.OutOfMemoryException as error:
            raise RunError(
                f"{memory_mib} MiB do not suffice to find duplicates: {visible(str(error), 300)}",
                fix="Give memory_mib=8192 or more, and more room on the disk of the run",
            ) from None
        finally:
            base.close()


def _read_shards(
    base: duckdb.DuckDBPyConnection, config: DuplicatesConfig, shards: Sequence[Path]
) -> None:
    """Tables `documents` (rank, text_key), `keys` (text_key, first) and `signatures` (rank).

    A rank is a document's place in the order of preference: the smallest of a cluster is kept.
    `first` is the smallest rank of a text; only that row's signature is compared.
    """
    base.execute(
        "CREATE TABLE loaded (shard INT, row BIGINT, document_id VARCHAR, date VARCHAR,"
        " text_key BLOB, signature BLOB)"
    )
    seen: dict[int, Path] = {}
    for path in shards:
        _read_shard(base, config, path, seen)
    base.execute(
        "CREATE TABLE documents AS SELECT row_number() OVER () AS rank, * EXCLUDE (date) FROM"
        " (FROM loaded ORDER BY coalesce(nullif(date, ''), $1), document_id, shard, row)",
        [UNDATED],
    )
    base.execute("DROP TABLE loaded")
    base.execute(
        "CREATE TABLE keys AS SELECT text_key, min(rank) AS first FROM documents GROUP BY text_key"
    )
    base.execute(
        "CREATE TABLE signatures AS SELECT rank, signature FROM documents"
        " SEMI JOIN keys ON rank = first WHERE signature <> $1",
        [np.full(config.hashes, NOTHING, "<u4").tobytes()],
    )


def _read_shard(
    base: duckdb.DuckDBPyConnection, config: DuplicatesConfig, path: Path, seen: dict[int, Path]
) -> None:
    if not path.is_file():
        raise DataError(f"{path} does not exist", fix="Run the step that writes it again")
    file = [literal_path(path)]
    try:
        facts = base.execute(
            "SELECT count(*), count(DISTINCT row), min(shard), max(shard), count(document_id),"
            " count(*) FILTER (octet_length(text_key) = 16 AND octet_length(signature) = $2)"
            " FROM read_parquet($1, hive_partitioning=false)",
            [file, config.hashes * _BYTES],
        ).fetchone()
        count, distinct, least, most, named, fitting = facts or (0,) * 6
        if not count == distinct == named == fitting or least != most or least in seen:
            raise DataError(
                f"{path} is no table of keys: {count} rows, {distinct} row numbers, {named} "
                f"identifiers, {fitting} signatures of {config.hashes} values, shards {least} to "
                f"{most}" + (f", as {seen[least]}" if least in seen else ""),
                fix="Run the step that writes it again with this configuration",
            )
        base.execute(
            "INSERT INTO loaded SELECT shard, row, document_id, date, text_key, signature"
            " FROM read_parquet($1, hive_partitioning=false)",
            [file],
        )
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(
            f"{path} cannot be read: {visible(str(error), 300)}",
            fix="Delete it and run the step that writes it again",
        ) from None
    if count:
        seen[least] = path


def _compare(base: duckdb.DuckDBPyConnection, config: DuplicatesConfig) -> int:
    """Table `edges` of near duplicates (low and high rank); how many pairs were compared."""
    _candidates(base, config)
    base.execute("CREATE TABLE edges (low BIGINT, high BIGINT)")
    compared, writing = 0, base.cursor()
    for batch in _stream(
        base,
        "SELECT low, high, one.signature AS one, other.signature AS other FROM pairs"
        " JOIN signatures one ON one.rank = low JOIN signatures other ON other.rank = high",
    ):
        compared += len(batch)
        one, other = (_values(batch.column(name), config.hashes) for name in ("one", "other"))
        alike = np.mean(one == other, axis=1) >= config.threshold
        edges = pa.table(batch.select(["low", "high"]).filter(pa.array(alike)))
        writing.register("found", edges)
        writing.execute("INSERT INTO edges FROM found")
    base.execute("DROP TABLE pairs")
    return compared


def _candidates(base: duckdb.DuckDBPyConnection, config: DuplicatesConfig) -> None:
    """Table `pairs` (low and high rank): what shares a band and stands near each other in it."""
    width, whole = config.band_hashes * _BYTES, config.hashes * _BYTES
    base.execute("CREATE TABLE bands (band SMALLINT, agreed UBIGINT, next BLOB, rank BIGINT)")
    for band in range(config.bands):
        begin = band * width
        after = (begin + width) % whole
        base.execute(
            "INSERT INTO bands SELECT $1, hash(signature[$2:$3]), signature[$4:$5], rank"
            " FROM signatures",
            [band, begin + 1, begin + width, after + 1, after + 2 * _BYTES],
        )
    steps = range(1, config.neighbours + 1)
    lags = ", ".join(f"lag(rank, {step}) OVER sorted" for step in steps)
    base.execute(
        "CREATE TABLE pairs AS SELECT DISTINCT least(rank, other) AS low,"
        " greatest(rank, other) AS high FROM"
        f" (SELECT rank, unnest([{lags}]) AS other FROM bands"
        " WINDOW sorted AS (PARTITION BY band, agreed ORDER BY next, rank))"
        " WHERE other IS NOT NULL"
    )
    base.execute("DROP TABLE bands")


def _join_components(base: duckdb.DuckDBPyConnection) -> None:
    """Table `components` (rank, root): the smallest rank that edges lead to, for each that has one."""
    nodes: Ranks = base.execute(
        "SELECT low AS rank FROM edges UNION SELECT high FROM edges ORDER BY rank"
    ).fetchnumpy()["rank"]
    parent = np.arange(len(nodes))
    for batch in _stream(base, "FROM edges"):
        low, high = (np.searchsorted(nodes, batch.column(name)) for name in ("low", "high"))
        for one, other in zip(low.tolist(), high.tolist(), strict=True):
            one, other = _root(parent, one), _root(parent, other)
            parent[max(one, other)] = min(one, other)
    while not np.array_equal(above := parent[parent], parent):
        parent = above
    base.register("found", pa.table({"rank": nodes, "root": nodes[parent]}))
    base.execute("CREATE TABLE components AS FROM found")
    base.unregister("found")


def _root(parent: NDArray[np.int64], node: int) -> int:
    while (above := int(parent[node])) != node:
        parent[node] = parent[above]
        node = above
    return node


def _write(base: duckdb.DuckDBPyConnection, result: Path, pairs: int) -> Clusters:
    base.execute(
        "CREATE TABLE rooted AS SELECT shard, row, document_id, rank,"
        " coalesce(root, first) AS root, CASE WHEN rank <> first THEN $1"
        " WHEN rank <> root THEN $2 ELSE '' END AS kind"
        " FROM documents JOIN keys USING (text_key) LEFT JOIN components USING (rank)",
        [EXACT, NEAR],
    )
    base.execute(
        "CREATE TABLE sizes AS SELECT root, count(*) AS rows, any_value(document_id)"
        " FILTER (rank = root) AS kept_id FROM rooted GROUP BY root HAVING rows > 1"
    )
    kinds = {EXACT: 0, NEAR: 0, "": 0}
    with atomic(result) as path, TableWriter(path, CLUSTERS_SCHEMA) as table:
        for batch in _stream(
            base,
            "SELECT shard, row, document_id, kept_id, rank = root AS kept, kind, rows"
            " FROM rooted JOIN sizes USING (root) ORDER BY shard, row",
        ):
            for row in batch.to_pylist():
                kinds[row["kind"]] += 1
                table.add(row)
    counted = base.execute("SELECT count(*) FROM rooted").fetchone()
    return Clusters(
        rows=counted[0] if counted else 0,
        exact=kinds[EXACT],
        near=kinds[NEAR],
        pairs=pairs,
        clusters=kinds[""],
    )


def _stream(base: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.RecordBatch]:
    yield from base.sql(query).to_arrow_reader(_BATCH)


def _values(signatures: pa.Array, hashes: int) -> NDArray[np.uint32]:
    """Signatures as a table, shape (signatures, hashes)."""
    return np.frombuffer(b"".join(signatures.to_pylist()), "<u4").reshape(-1, hashes)
