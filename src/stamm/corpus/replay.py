"""A finished corpus under a newer word: what has to go, where it stands, and the corpus without it.

Nothing is extracted, judged or encoded again. Who is asked anew: the hosts in newer snapshots of
robots.txt, tdmrep.json and ai.txt, and in domain lists; and persons who asked for deletion, by address or by hash. What was
dropped stays dropped: a later permission brings nothing back.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, canonical_json, read_json, remove_leftovers, write_json
from stamm.corpus.config import ReplayConfig
from stamm.corpus.consent.words import Words, read_words
from stamm.corpus.deletions import Deletions, read_deletions
from stamm.corpus.inputs import expand
from stamm.corpus.ledger import DOCUMENTS_SCHEMA, DROPPED, KEPT, LEDGER_SCHEMA
from stamm.corpus.planting import PLANTED, PROBES
from stamm.corpus.query import Query, opened
from stamm.corpus.records import Signals
from stamm.corpus.summary import summarise
from stamm.corpus.tables import TableWriter, part, parts, read_rows, require_columns, write_whole
from stamm.runs.job import Workspace
from stamm.runs.tasks import Batch, Outcome, Task, common_files
from stamm.runs.workers import cores, do_batch

SUMMARY = "summary.json"
WITHDRAWN = "withdrawn.parquet"
RANGES = "token_ranges.parquet"
WITHDRAWN_SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("document_id", "url", "host", "language", "reason", "rule", "agent", "read")
    ]
    + [("shard", pa.string()), ("bytes", pa.int64())]
)
_ROLES = ("robots", "domains", "deletions")


def replay(config: ReplayConfig, workspace: Workspace) -> None:
    """Write the corpus without what was withdrawn, and the lists of what that was.

    Reads    inputs["corpus"], and inputs["pack"] where there is one
    Leaves   documents and ledger of every shard; withdrawn.parquet, one row per document;
             token_ranges.parquet, one row per stretch of the packed corpus; summary.json
    Raises   DataError when nobody's word was given, or nothing is left.
    """
    folder, corpus = workspace.folder, workspace.inputs["corpus"]
    remove_leftovers(folder)
    for path in parts(corpus, "ledger"):
        require_columns(path, LEDGER_SCHEMA)
    words = {role: expand(getattr(config, role), f"replay.{role}") for role in _ROLES}
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(corpus, "ledger"))
        twins = folder / "twins.json"
        write_json(twins, _twins(query, _deletions(words["deletions"].values())))
    common = {f"{role}.{name}": str(p) for role in words for name, p in words[role].items()}
    batch = Batch(
        folder=folder,
        work="stamm.corpus.replay:replay_shard",
        settings=to_plain(config),
        rooms=("corpus",),
        common={**common, "twins": str(twins.resolve())},
        tasks=tuple(
            Task(
                name=path.stem.partition("-")[2],
                inputs={
                    "ledger": str(path.resolve()),
                    "documents": str((corpus / path.name.replace("ledger", "documents")).resolve()),
                },
            )
            for path in parts(corpus, "ledger")
        ),
    )
    do_batch(batch, workspace, "replay")
    _conclude(config, workspace)


def replay_shard(batch: Batch, task: Task) -> Outcome:
    """Ask again about every document of a shard that was kept."""
    words, deletions = _words(canonical_json(batch.settings), common_files(batch))
    outputs = {kind: part(kind, task.name) for kind in ("documents", "ledger", "withdrawn")}
    schemas = (DOCUMENTS_SCHEMA, LEDGER_SCHEMA, WITHDRAWN_SCHEMA)
    documents_in = read_rows(Path(task.inputs["documents"]))
    dropped: Counter[str] = Counter()
    count = 0
    with ExitStack() as stack:
        documents, ledger, withdrawn = (
            stack.enter_context(
                TableWriter(stack.enter_context(atomic(batch.folder / file)), schema)
            )
            for file, schema in zip(outputs.values(), schemas, strict=True)
        )
        for row in read_rows(Path(task.inputs["ledger"])):
            if row["decision"] != KEPT:
                ledger.add(row)
                continue
            document = next(documents_in, None)
            if document is None or document["document_id"] != row["document_id"]:
                raise DataError(
                    f"documents and ledger of shard {task.name} do not belong together",
                    fix="Build the corpus again",
                )
            count += 1
            size = row["bytes_out"]
            if _withdraw(row, words, deletions):
                dropped[row["reason"]] += 1
                withdrawn.add(_told(row, task.name, size))
            else:
                documents.add(document)
            ledger.add(row)
    return Outcome(
        outputs=tuple(outputs.values()),
        came_in=count,
        kept=count - dropped.total(),
        dropped=dropped,
    )


def _withdraw(row: dict[str, Any], words: Words, deletions: Deletions) -> bool:
    """Whether a newer word takes a document out; the row then says whose."""
    asked = deletions.rule(row["url"], row["document_id"])
    if asked:
        row |= {"reason": "deletion_request", "rule": asked, "agent": "", "robots_read": ""}
    elif row["consent"] == PLANTED:
        return False  # a passage of ours, not a page of theirs
    else:
        found = _refusal(row["url"], words)
        if not found:
            return False
        row |= found
    row |= {"decision": DROPPED, "bytes_out": 0, "split": ""}
    return True


def _refusal(url: str, words: Words) -> dict[str, str]:
    """The newer refusal of an address, {} when there is none. Pages are not read again."""
    decision = words.ask(url)
    if not decision.allowed:
        return {
            "reason": decision.consent,
            "consent": decision.consent,
            "rule": decision.rule,
            "agent": decision.agent,
            "robots_read": decision.read,
        }
    refusal = words.refused_before_reading(url, decision.host, Signals(), is_html=False)
    if refusal is None:
        return {}
    return {"reason": refusal.reason, "rule": refusal.rule, "agent": refusal.agent}


def _told(row: dict[str, Any], shard: str, size: int) -> dict[str, Any]:
    same = {key: row[key] for key in ("document_id", "url", "host", "language", "reason")}
    return same | {
        "rule": row["rule"],
        "agent": row["agent"],
        "read": row["robots_read"],
        "shard": shard,
        "bytes": size,
    }


def _twins(query: Query, deletions: Deletions) -> dict[str, str]:
    """Documents kept in the place of one whose deletion was asked for: the same text stays in them.

    Who asks by address asks for the text there, whichever address it was taken from.
    """
    dropped = query.stream(
        "select document_id, url, duplicate_of from ledger where duplicate_of <> '' "
        "order by document_id, url"
    )
    return {
        kept: f"{rule}, of which this is the same text"
        for document_id, url, kept in dropped
        if (rule := deletions.rule(url, document_id))
    }


def _deletions(paths: Any) -> Deletions:
    return Deletions.joined(read_deletions(path) for path in paths)


@functools.lru_cache(maxsize=1)
def _words(settings: bytes, common: tuple[tuple[str, str, str], ...]) -> tuple[Words, Deletions]:
    config = from_plain(ReplayConfig, json.loads(settings))
    files: dict[str, dict[str, Path]] = {role: {} for role in (*_ROLES, "twins")}
    for role, path, _ in common:
        kind, _, name = role.partition(".")
        files[kind][name] = Path(path)
    robots = tuple(files["robots"].values())
    words = read_words(config.consent, robots, files["domains"], config.limits)
    twins = Deletions({}, read_json(files["twins"][""]))
    return words, Deletions.joined([_deletions(files["deletions"].values()), twins])


def _conclude(config: ReplayConfig, workspace: Workspace) -> None:
    folder, corpus = workspace.folder, workspace.inputs["corpus"]
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(folder, "ledger"))
        query.view("withdrawn", parts(folder, "withdrawn"))
        with atomic(folder / WITHDRAWN) as path:
            query.write(
                f"select {', '.join(WITHDRAWN_SCHEMA.names)} from withdrawn "
                "order by document_id, shard, url",
                path,
            )
        tokens = _ranges(query, workspace)
        languages = query.rows(
            "with before as (select language, count(*) as documents, sum(bytes)::bigint as bytes "
            "from (select language, bytes_out as bytes from ledger where decision = 'kept' and "
            "consent <> 'planted' union all select language, bytes from withdrawn) "
            "group by language), gone as (select language, count(*) as documents, "
            "sum(bytes)::bigint as bytes from withdrawn group by language) "
            "select b.language, b.documents, coalesce(g.documents, 0), b.bytes, "
            "coalesce(g.bytes, 0) from before b left join gone g on b.language = g.language "
            "order by b.bytes desc, b.language"
        )
        reasons = query.rows(
            "select reason, count(*) as n from withdrawn group by reason order by n desc, reason"
        )
        summary = summarise(query)
    write_json(
        folder / SUMMARY,
        summary
        | {
            "withdrawn_by_reason": dict(reasons),
            "withdrawn_tokens": tokens,
            "withdrawn_by_language": {
                language: {
                    "documents": before,
                    "withdrawn": gone,
                    "bytes": size,
                    "withdrawn_bytes": lost,
                    "share": round(lost / size, 6) if size else 0.0,
                }
                for language, before, gone, size, lost in languages
            },
        },
    )
    if not summary["n_kept"]:
        raise DataError("every document was withdrawn", fix="Nothing is left to train on")
    with atomic(folder / PROBES) as path:
        path.write_bytes((corpus / PROBES).read_bytes())


def _ranges(query: Query, workspace: Workspace) -> dict[str, int]:
    """Write which tokens of the packed corpus stand for what was withdrawn; how many, by split."""
    folder = workspace.folder
    schema = pa.schema(
        [("document_id", pa.string()), ("split", pa.string()), ("shard", pa.string())]
        + [(name, pa.int64()) for name in ("occurrence", "start", "stop")]
    )
    if "pack" not in workspace.inputs:
        write_whole(folder / RANGES, schema, [])
        return {}
    packed = workspace.inputs["pack"]
    query.view("sidecars", sorted(packed.glob("*-[0-9]*.documents.parquet")))
    query.run(
        "create temp table ranges as select s.document_id, "
        "regexp_extract(s.filename, '([a-z_]+)-\\d+\\.documents\\.parquet$', 1) as split, "
        "regexp_extract(s.filename, '([a-z_]+-\\d+)\\.documents\\.parquet$', 1) as shard, "
        "s.occurrence, s.start, s.stop from sidecars s "
        "semi join withdrawn w on s.document_id = w.document_id"
    )
    with atomic(folder / RANGES) as path:
        query.write(f"select {', '.join(schema.names)} from ranges order by split, start", path)
    return dict(
        query.rows(
            "select split, sum(stop - start)::bigint from ranges group by split order by split"
        )
    )
