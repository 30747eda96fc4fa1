"""Job of the global filters: score thresholds per language, deduplication, the held-out split.

Writes for shard k decisions-k.parquet: a row for each candidate, in order of position.
clusters.parquet lists every document that has a duplicate.
"""

from __future__ import annotations

import itertools
import operator
import shutil
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stamm.base.files import atomic, remove_leftovers, write_json
from stamm.corpus.classifiers.config import ThresholdConfig
from stamm.corpus.config import GlobalFilterConfig
from stamm.corpus.dedup.cluster import find_clusters
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.ledger import count_held_out
from stamm.corpus.query import Query, opened
from stamm.corpus.tables import columns, part, write_batches
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores
from stamm.runs.sharded_job import read_manifests

SCHEMA = 1
SUMMARY = "summary.json"
CLUSTERS = "clusters.parquet"
DECISIONS_SCHEMA = columns("position:int64 reason detail duplicate_of split")
"""One row per candidate of a shard."""

_BELOW_ALL = -1.0  # scores lie in [0, 1]


def filter_globally(config: GlobalFilterConfig, workspace: Workspace) -> None:
    """Filter the candidates in inputs["filtered"]; write decisions and summary.json."""
    folder, filtered = workspace.folder, workspace.inputs["filtered"]
    remove_leftovers(folder)
    names = list(read_manifests(filtered))
    workspace.progress.begin("global_filter", 4, "parts")
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("candidates", [filtered / part("candidates", name) for name in names])
        query.run(
            "create temp table cut (shard integer, position bigint, reason varchar, detail varchar)"
        )
        thresholds = {
            "toxicity": _cut(query, "toxicity", "toxic", config.toxicity_cut, above=True),
            "quality": _cut(query, "quality", "low_quality", config.quality_cut, above=False),
        }
        workspace.progress.advance(1)
        duplicates = _find_duplicates(query, config, folder, filtered, names)
        workspace.progress.advance(2)
        held_out = _hold_out(query, config)
        workspace.progress.advance(3)
        _write_decisions(query, folder, names)
        counts = query.rows("select reason, count(*) from decided group by reason order by reason")
    write_json(
        folder / SUMMARY,
        {
            "schema": SCHEMA,
            "by_reason": dict(counts),
            "held_out_by_language": held_out,
            "duplicates": duplicates,
            "thresholds": thresholds,
        },
    )
    workspace.progress.end()


def _write_decisions(query: Query, folder: Path, names: list[str]) -> None:
    """Write the table `global_filter` in one pass, a file for each shard."""
    columns = ", ".join(DECISIONS_SCHEMA.names)
    rows = query.batches(f"select shard, {columns} from decided order by shard, position")
    groups = itertools.groupby(_by_shard(rows), key=operator.itemgetter(0))
    group = next(groups, None)
    for name in sorted(names, key=int):
        with atomic(folder / part("decisions", name)) as path:
            if group is None or group[0] != int(name):  # no candidate in this shard
                write_batches(path, DECISIONS_SCHEMA, ())
                continue
            write_batches(path, DECISIONS_SCHEMA, (batch for _, batch in group[1]))
        group = next(groups, None)


def _by_shard(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches sorted by shard, split at the borders of shards."""
    for batch in batches:
        shards = batch.column("shard").to_numpy()
        rows = batch.select(DECISIONS_SCHEMA.names)
        borders = np.flatnonzero(np.diff(shards)) + 1
        for first, stop in itertools.pairwise([0, *borders.tolist(), len(shards)]):
            yield int(shards[first]), rows.slice(first, stop - first)


def _cut(
    query: Query, score: str, reason: str, config: ThresholdConfig, *, above: bool
) -> dict[str, Any]:
    """Drop one tail of a score in each language with enough documents; returns the thresholds.

    At most floor(share * n) documents are above the threshold, and ties at it are below. `above`
    drops those above it, otherwise all others are dropped. A document that an earlier cut dropped
    counts for the threshold, and keeps its first reason.
    """
    counts = query.rows(
        f"select language, count(*) from candidates where {score} >= 0 "
        "group by language order by language"
    )
    thresholds: dict[str, Any] = {}
    for language, count in counts:
        if count < config.min_documents:
            thresholds[language] = None
            continue
        offset = int(Fraction(repr(float(config.share))) * count)
        if offset == count:
            value = _BELOW_ALL
        else:
            ((value,),) = query.rows(
                f"select {score} from candidates where {score} >= 0 and language = $language "
                f"order by {score} desc limit 1 offset {offset}",
                {"language": language},
            )
        thresholds[language] = value
        query.run(
            f"insert into cut select shard, position, '{reason}', "
            f"printf('%.4f, threshold %.4f', {score}, $value) from candidates "
            f"where {score} >= 0 and language = $language and "
            f"{score} {'>' if above else '<='} $value and not exists (select 1 from cut c "
            "where c.shard = candidates.shard and c.position = candidates.position)",
            {"language": language, "value": value},
        )
    return thresholds


def _find_duplicates(
    query: Query, config: GlobalFilterConfig, folder: Path, filtered: Path, names: list[str]
) -> dict[str, int]:
    """Create the table `duplicates`: candidates dropped because another document has the text."""
    shards = [filtered / part("keys", name) for name in names]
    scratch = folder / ".keys.part"
    scratch.mkdir(exist_ok=True)
    try:
        ((cut,),) = query.rows("select count(*) from cut")
        if cut:
            # A dropped text must not be the kept one of its duplicates.
            shards = [_survivors(query, shard, scratch) for shard in shards]
        with atomic(folder / CLUSTERS) as path:
            clusters = find_clusters(
                config.dedup or DedupConfig(),
                shards,
                path,
                scratch=scratch,
                memory_mib=round(1024 * config.memory_gib),
                threads=cores(),
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    query.view("clusters", [folder / CLUSTERS])
    query.run(
        "create temp table duplicates as select shard, row as position, kept_id, "
        "kind || '_duplicate' as reason from clusters where not kept"
    )
    return {"exact": clusters.exact, "near": clusters.near, "clusters": clusters.clusters}


def _survivors(query: Query, shard: Path, scratch: Path) -> Path:
    query.view("keys", [shard])
    path = scratch / shard.name
    query.write(
        "select k.* exclude (filename) from keys k anti join cut c "
        "on k.shard = c.shard and k.row = c.position order by k.row",
        path,
    )
    return path


def _hold_out(query: Query, config: GlobalFilterConfig) -> dict[str, int]:
    """Create the table `global_filter`; numbers of held-out documents by language.

    The documents of a language are sorted by SHA-256 of "held out {seed} {document_id}", and the
    first of them held out.
    """
    query.run(
        "create temp table decided as select n.shard, n.position, n.document_id, n.language, "
        "coalesce(c.reason, t.reason, '') as reason, coalesce(c.detail, '') as detail, "
        "case when c.reason is null then coalesce(t.kept_id, '') else '' end as duplicate_of, "
        "'' as split from candidates n "
        "left join cut c on n.shard = c.shard and n.position = c.position "
        "left join duplicates t on n.shard = t.shard and n.position = t.position"
    )
    counts = query.rows(
        "select language, count(*) from decided where reason = '' "
        "group by language order by language"
    )
    wanted = {name: count_held_out(count, config.held_out) for name, count in counts}
    query.run("create temp table wanted (language varchar, count bigint)")
    for language, count in wanted.items():
        query.run(
            "insert into wanted values ($language, $count)", {"language": language, "count": count}
        )
    query.run(
        "create temp table placed as select d.shard, d.position, row_number() over ("
        "partition by d.language order by sha256('held out ' || $seed || ' ' || d.document_id), "
        "d.document_id) <= w.count as held from decided d "
        "join wanted w on d.language = w.language where d.reason = ''",
        {"seed": str(config.seed)},
    )
    query.run(
        "update decided set split = case when p.held then 'held_out' else 'train' end "
        "from placed p where decided.shard = p.shard and decided.position = p.position"
    )
    return {name: count for name, count in wanted.items() if count}
