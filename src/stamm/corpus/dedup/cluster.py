"""Deduplication of a whole corpus: clusters of duplicates, and the document kept of each.

Out of core: duckdb sorts and joins tables within a memory limit, on disk beyond it. Only documents
with a near-duplicate are held in memory, at 16 bytes each. The result depends on the documents
alone, not on shards, their order or names, threads or memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import atomic
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import EMPTY_VALUE, Signature
from stamm.corpus.query import Query, opened
from stamm.corpus.tables import TableWriter, columns, require_columns

EXACT, NEAR = "exact", "near"
_BYTES = 4  # of one value of a signature
_HASH_BYTES = 16


def keys_schema(config: DedupConfig) -> pa.Schema:
    """The columns of a shard's table of keys, one row per document; made with `keys_row`."""
    named = columns("shard:int32 row:int64 document_id date source licence language")
    hashes = {"text_hash": _HASH_BYTES, "text_key": 16, "signature": _BYTES * config.hashes}
    return pa.schema([*named, *((name, pa.binary(size)) for name, size in hashes.items())])


CLUSTERS_SCHEMA = columns("shard:int32 row:int64 document_id kept_id kept:bool kind rows:int64")
"""Every row with a duplicate, by shard and row. `kept_id` identifies its cluster, `kind` is the kind
of duplicate ("exact", "near", "" for the one kept), `rows` the size of the cluster."""


@dataclass(frozen=True, kw_only=True)
class DedupCounts:
    """Counts over all shards: rows, except for `pairs` compared and `clusters`."""

    rows: int
    exact: int
    near: int
    pairs: int
    clusters: int


def keys_row(*, key: bytes, signature: Signature, **facts: Any) -> dict[str, Any]:
    """One row of a shard's table of keys; texts without a value are empty.

    key     `shingles.text_key` of the text
    facts   the other columns; text_hash is a 16-byte hash of the exact text
    """
    empty = dict.fromkeys(("date", "source", "licence", "language"), "")
    packed = {"text_key": key, "signature": signature.astype("<u4").tobytes()}
    return empty | {"text_hash": bytes(_HASH_BYTES)} | facts | packed


def find_clusters(
    config: DedupConfig,
    shards: Sequence[Path],
    result: Path,
    *,
    scratch: Path,
    memory_mib: int = 4096,
    threads: int = 1,
) -> DedupCounts:
    """Find clusters of duplicates; write each row with duplicates, and the one kept, to `result`.

    Of a cluster the row is kept that is first by date, identifier, licence, language, hash of its
    text and source; missing values sort last. (The source of a web archive is its file.) Rows equal
    in all of these are one document, ordered by shard and row. For an identifier with two texts (a
    page whose bytes were decoded in two ways) the text of its first row counts: the others are its
    exact duplicates.

    shards      tables of `keys_schema`
    scratch     an existing folder for temporary files, up to four times the size of the shards
    memory_mib  for duckdb; comparison and union-find need more (16 bytes a near-duplicate)

    Edge     Two texts are compared when all hashes of a band agree. Where more than `neighbours`
             others share that band, it is sorted by the next hashes of the signature, and each text
             is compared with those just before it: a pair missed in such a band may be found in
             another, or through a third text similar to both, or not at all.
             Clusters are connected components, so two members may be less similar than `threshold`.
             Texts without words have exact duplicates only.
    Raises   DataError when a shard is missing or invalid, RunError when memory or disk is full.
    Checked  tests/unit/corpus/dedup/test_cluster.py
    """
    with opened(scratch, memory_mib / 1024, threads, keep_order=False) as query:
        _read_shards(query, config, shards)
        pairs = _compare(query, config)
        _join_components(query)
        return _write(query, result, pairs)


def _read_shards(query: Query, config: DedupConfig, shards: Sequence[Path]) -> None:
    """Tables `documents` (rank, text_key), `keys` (text_key, first) and `signatures` (rank).

    A rank is the position in the order of preference: the smallest of a cluster is kept. `first` is
    the smallest rank of a text; only that row's signature is compared.
    """
    seen: dict[int, Path] = {}
    for path in shards:
        _check_shard(query, config, path, seen)
    known = ", ".join(
        f"nullif({name}, '') NULLS LAST"
        for name in ("date", "document_id", "licence", "language", "text_hash", "source")
    )
    query.view("loaded", shards)
    query.run(
        "CREATE TABLE documents AS SELECT row_number() OVER () AS rank, shard, row, document_id,"
        f" text_key, signature FROM (FROM loaded ORDER BY {known}, shard, row)"
    )
    query.run(
        "UPDATE documents SET text_key = named.text_key FROM ("
        "SELECT document_id, arg_min(text_key, rank) AS text_key FROM documents"
        " GROUP BY document_id HAVING min(text_key) <> max(text_key)) named"
        " WHERE documents.document_id = named.document_id"
    )
    query.run(
        "CREATE TABLE keys AS SELECT text_key, min(rank) AS first FROM documents GROUP BY text_key"
    )
    query.run(
        "CREATE TABLE signatures AS SELECT rank, signature FROM documents"
        " SEMI JOIN keys ON rank = first WHERE signature <> $nothing",
        {"nothing": np.full(config.hashes, EMPTY_VALUE, "<u4").tobytes()},
    )


def _check_shard(query: Query, config: DedupConfig, path: Path, seen: dict[int, Path]) -> None:
    require_columns(path, keys_schema(config))
    query.view("loaded", [path])
    ((count, distinct, least, most, named, fitting),) = query.rows(
        "SELECT count(*), count(DISTINCT row), min(shard), max(shard), count(document_id),"
        " count(*) FILTER (octet_length(text_key) = 16 AND octet_length(signature) = $size)"
        " FROM loaded",
        {"size": config.hashes * _BYTES},
    )
    if not count == distinct == named == fitting or least != most or least in seen:
        raise DataError(
            f"{path} is not a table of keys: {count} rows, {distinct} row numbers, {named} "
            f"identifiers, {fitting} signatures of {config.hashes} values, shards {least} to "
            f"{most}" + (f", as {seen[least]}" if least in seen else ""),
            fix="Rerun the step that writes it with this configuration",
        )
    if count:
        seen[least] = path


def _compare(query: Query, config: DedupConfig) -> int:
    """Create table `edges` of near-duplicates (low and high rank); return the pairs compared."""
    _candidates(query, config)
    query.run("CREATE TABLE edges (low BIGINT, high BIGINT)")
    compared = 0
    for batch in query.batches(
        "SELECT low, high, one.signature AS one, other.signature AS other FROM pairs"
        " JOIN signatures one ON one.rank = low JOIN signatures other ON other.rank = high"
    ):
        compared += len(batch)
        low_signatures, high_signatures = (
            _values(batch.column(name), config.hashes) for name in ("one", "other")
        )
        similar = np.mean(low_signatures == high_signatures, axis=1) >= config.threshold
        query.insert("edges", pa.table(batch.select(["low", "high"]).filter(pa.array(similar))))
    query.run("DROP TABLE pairs")
    return compared


def _candidates(query: Query, config: DedupConfig) -> None:
    """Create table `pairs` (low and high rank): texts that share a band and are neighbours in it."""
    width, whole = config.band_hashes * _BYTES, config.hashes * _BYTES
    query.run("CREATE TABLE bands (band SMALLINT, agreed UBIGINT, next BLOB, rank BIGINT)")
    for band in range(config.bands):
        begin = band * width
        after = (begin + width) % whole
        query.run(
            f"INSERT INTO bands SELECT {band}, hash(signature[{begin + 1}:{begin + width}]),"
            f" signature[{after + 1}:{after + 2 * _BYTES}], rank FROM signatures"
        )
    steps = range(1, config.neighbours + 1)
    lags = ", ".join(f"lag(rank, {step}) OVER sorted" for step in steps)
    query.run(
        "CREATE TABLE pairs AS SELECT DISTINCT least(rank, other) AS low,"
        " greatest(rank, other) AS high FROM"
        f" (SELECT rank, unnest([{lags}]) AS other FROM bands"
        " WINDOW sorted AS (PARTITION BY band, agreed ORDER BY next, rank))"
        " WHERE other IS NOT NULL"
    )
    query.run("DROP TABLE bands")


def _join_components(query: Query) -> None:
    """Create table `components` (rank, root): the smallest rank of each connected component."""
    nodes = query.numbers(
        "SELECT low AS rank FROM edges UNION SELECT high FROM edges ORDER BY rank"
    )
    parent = np.arange(len(nodes))
    for batch in query.batches("FROM edges"):
        low, high = (np.searchsorted(nodes, batch.column(name)) for name in ("low", "high"))
        for low_node, high_node in zip(low.tolist(), high.tolist(), strict=True):
            low_root, high_root = _root(parent, low_node), _root(parent, high_node)
            parent[max(low_root, high_root)] = min(low_root, high_root)
    while not np.array_equal(above := parent[parent], parent):
        parent = above
    query.run("CREATE TABLE components (rank BIGINT, root BIGINT)")
    query.insert("components", pa.table({"rank": nodes, "root": nodes[parent]}))


def _root(parent: NDArray[np.int64], node: int) -> int:
    while (above := int(parent[node])) != node:
        parent[node] = parent[above]
        node = above
    return node


def _write(query: Query, result: Path, pairs: int) -> DedupCounts:
    query.run(
        "CREATE TABLE rooted AS SELECT shard, row, document_id, rank,"
        " coalesce(root, first) AS root, CASE WHEN rank <> first THEN $exact"
        " WHEN rank <> root THEN $near ELSE '' END AS kind"
        " FROM documents JOIN keys USING (text_key) LEFT JOIN components USING (rank)",
        {"exact": EXACT, "near": NEAR},
    )
    query.run(
        "CREATE TABLE sizes AS SELECT root, count(*) AS rows, any_value(document_id)"
        " FILTER (rank = root) AS kept_id FROM rooted GROUP BY root HAVING rows > 1"
    )
    kinds = {EXACT: 0, NEAR: 0, "": 0}
    with atomic(result) as path, TableWriter(path, CLUSTERS_SCHEMA) as table:
        for batch in query.batches(
            "SELECT shard, row, document_id, kept_id, rank = root AS kept, kind, rows"
            " FROM rooted JOIN sizes USING (root) ORDER BY shard, row"
        ):
            for row in batch.to_pylist():
                kinds[row["kind"]] += 1
                table.add(row)
    ((counted,),) = query.rows("SELECT count(*) FROM rooted")
    return DedupCounts(
        rows=counted,
        exact=kinds[EXACT],
        near=kinds[NEAR],
        pairs=pairs,
        clusters=kinds[""],
    )


def _values(signatures: pa.Array, hashes: int) -> NDArray[np.uint32]:
    """Signatures as an array, shape (signatures, hashes)."""
    return np.frombuffer(b"".join(signatures.to_pylist()), "<u4").reshape(-1, hashes)
