"""A finished corpus under a newer word: what has to go, where it stands, and the corpus without it.

Who is asked anew: the hosts in newer snapshots of robots.txt, tdmrep.json and ai.txt, and in domain
lists; and persons who asked for deletion, by address or by hash.

Nothing is extracted, judged or encoded again. What was decided over all documents stays decided:
which of several like texts stood for them all, the thresholds of scores, what is held out, the
vocabulary. What was dropped stays dropped: a later permission brings nothing back, nor does the
withdrawal of the document of which it was a duplicate. summary.json counts those.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, canonical_json, read_json, remove_leftovers, write_json
from stamm.base.schema import write_record
from stamm.corpus.canaries.config import PROBES
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.consent.snapshot_index import index_snapshots
from stamm.corpus.deletions import (
    REQUESTS_SCHEMA,
    Deletions,
    answered,
    outcomes,
    read_deletions,
    unmatched_words,
)
from stamm.corpus.inputs import expand
from stamm.corpus.ledger import DOCUMENTS_SCHEMA, DROPPED, KEPT, LEDGER_SCHEMA, PLANTED
from stamm.corpus.opt_out_config import ReplayConfig
from stamm.corpus.query import Query, opened
from stamm.corpus.records import Signals
from stamm.corpus.summary import SUMMARY, summarise
from stamm.corpus.tables import TableWriter, part, parts, read_rows, require_columns, write_whole
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores, run_shards
from stamm.runs.schemas.corpus import CorpusSummary
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

WITHDRAWN = "withdrawn.parquet"
RANGES = "token_ranges.parquet"
REQUESTS = "requests.parquet"
WITHDRAWN_SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("document_id", "url", "host", "language", "reason", "rule", "agent", "read")
    ]
    + [("shard", pa.string()), ("bytes", pa.int64()), ("probe_id", pa.string())]
)
_ASKED_SCHEMA = pa.schema(
    [("key", pa.string()), ("withdrawn", pa.int64()), ("out_before", pa.int64())]
)
_TWIN_WORDS = {"exact_duplicate": "the same text", "near_duplicate": "nearly the same text"}
_ROLES = ("robots", "domains", "deletions")


def replay(config: ReplayConfig, workspace: Workspace) -> None:
    """Write the corpus without what was withdrawn, and the lists of what that was.

    Reads    inputs["corpus"], and inputs["pack"] where there is one
    Leaves   documents and ledger of every shard; withdrawn.parquet, one row per document;
             token_ranges.parquet, one row per stretch of the packed corpus; requests.parquet, one
             row per request for deletion; probes.json without what was withdrawn; summary.json
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
        deletions = Deletions(read_deletions(words["deletions"].values()))
        write_json(twins, _twins(query, deletions))
    index_snapshots(words["robots"].values(), config.limits)
    common = {f"{role}.{name}": str(p) for role in words for name, p in words[role].items()}
    job = ShardedJob(
        folder=folder,
        work="stamm.corpus.opt_out_replay:replay_shard",
        settings=to_plain(config),
        code_packages=("corpus",),
        common={**common, "twins": str(twins.resolve())},
        shards=tuple(
            ShardTask(
                name=path.stem.partition("-")[2],
                inputs={
                    "ledger": str(path.resolve()),
                    "documents": str((corpus / path.name.replace("ledger", "documents")).resolve()),
                },
            )
            for path in parts(corpus, "ledger")
        ),
    )
    run_shards(job, workspace, "replay")
    _conclude(config, workspace, words["deletions"].values())


def replay_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Ask again about every document of a shard that was kept.

    Raises   DataError when documents and ledger do not belong together.
    """
    words, deletions, twins = _words(canonical_json(job.settings), common_files(job))
    outputs = {kind: part(kind, task.name) for kind in ("documents", "ledger", "withdrawn")}
    schemas = (DOCUMENTS_SCHEMA, LEDGER_SCHEMA, WITHDRAWN_SCHEMA)
    documents_in = read_rows(Path(task.inputs["documents"]))
    dropped: Counter[str] = Counter()
    withdrew: Counter[str] = Counter()
    out_before: Counter[str] = Counter()
    count = 0
    with ExitStack() as stack:
        documents, ledger, withdrawn = (
            stack.enter_context(TableWriter(stack.enter_context(atomic(job.folder / file)), schema))
            for file, schema in zip(outputs.values(), schemas, strict=True)
        )
        for row in read_rows(Path(task.inputs["ledger"])):
            keys = deletions.keys(row["url"], row["document_id"])
            if row["decision"] != KEPT:
                out_before.update(keys)
                ledger.add(row)
                continue
            document = next(documents_in, None)
            if document is None or document["document_id"] != row["document_id"]:
                raise _strangers(task)
            count += 1
            size = row["bytes_out"]
            twin = twins.get(row["document_id"])
            withdrew.update(keys or ([twin["key"]] if twin else []))
            rule = deletions.rule(keys[0]) if keys else twin["rule"] if twin else ""
            if _withdraw(row, rule, words):
                dropped[row["reason"]] += 1
                withdrawn.add(_told(row, task.name, size))
            else:
                documents.add(document)
            ledger.add(row)
        if next(documents_in, None) is not None:
            raise _strangers(task)
    asked = part("asked", task.name)
    write_whole(
        job.folder / asked,
        _ASKED_SCHEMA,
        (
            {"key": key, "withdrawn": withdrew[key], "out_before": out_before[key]}
            for key in sorted(withdrew.keys() | out_before.keys())
        ),
    )
    return ShardResult(
        outputs=(*outputs.values(), asked),
        num_read=count,
        kept=count - dropped.total(),
        dropped=dropped,
    )


def _withdraw(row: dict[str, Any], request: str, words: ConsentPolicies) -> bool:
    """Whether a request or a newer word takes a document out; the row then says whose."""
    if request:
        row |= {"reason": "deletion_request", "rule": request, "agent": "", "robots_read": ""}
    elif row["consent"] == PLANTED:
        return False  # a passage of ours, not a page of theirs
    else:
        found = _refusal(row["url"], words)
        if not found:
            return False
        row |= found
    row |= {"decision": DROPPED, "bytes_out": 0, "split": ""}
    return True


def _refusal(url: str, words: ConsentPolicies) -> dict[str, str]:
    """The newer refusal of an address, {} when there is none. Pages are not read again."""
    decision = words.decide(url)
    if not decision.allowed:
        return {
            "reason": decision.consent,
            "consent": decision.consent,
            "rule": decision.rule,
            "agent": decision.agent,
            "robots_read": decision.read,
        }
    refusal = words.refusal_before_parsing(url, decision.host, Signals(), is_html=False)
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
        "probe_id": row["probe_id"] or "",
    }


def _twins(query: Query, deletions: Deletions) -> dict[str, dict[str, str]]:
    """Documents kept in the place of one whose deletion was asked for: the same text stays in them.

    Who asks by address asks for the text there, whichever address it was taken from.
    """
    dropped = query.stream(
        "select document_id, url, duplicate_of, reason from ledger where duplicate_of <> '' "
        "order by document_id, url, duplicate_of, reason"
    )
    found: dict[str, dict[str, str]] = {}
    for document_id, url, kept, reason in dropped:
        keys = deletions.keys(url, document_id)
        if keys:
            like = _TWIN_WORDS.get(reason, "the same text")
            rule = f"{deletions.rule(keys[0])}, of which this is {like}"
            found.setdefault(kept, {"key": keys[0], "rule": rule})
    return found


@functools.lru_cache(maxsize=1)
def _words(
    settings: bytes, common: tuple[tuple[str, str, str], ...]
) -> tuple[ConsentPolicies, Deletions, dict[str, dict[str, str]]]:
    config = from_plain(ReplayConfig, json.loads(settings))
    files: dict[str, dict[str, Path]] = {role: {} for role in (*_ROLES, "twins")}
    for role, path, _ in common:
        kind, _, name = role.partition(".")
        files[kind][name] = Path(path)
    robots = tuple(files["robots"].values())
    words = load_policies(config.consent, robots, files["domains"], config.limits)
    deletions = Deletions(read_deletions(files["deletions"].values()))
    return words, deletions, read_json(files["twins"][""])


def _strangers(task: ShardTask) -> DataError:
    return DataError(
        f"documents and ledger of shard {task.name} do not belong together",
        fix="Build the corpus again",
    )


def _conclude(config: ReplayConfig, workspace: Workspace, deletions: Iterable[Path]) -> None:
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
        requests = _requests(query, folder, deletions)
        told = {
            "withdrawn_by_reason": dict(
                query.rows(
                    "select reason, count(*) as n from withdrawn where probe_id = '' "
                    "group by reason order by n desc, reason"
                )
            ),
            "withdrawn_tokens": tokens,
            "withdrawn_by_language": _by_language(query),
            "withdrawn_probes": _take_probes(query, corpus / PROBES, folder / PROBES),
            "duplicates_not_brought_back": _lost_twins(query),
            "deletion_requests": requests,
        }
        summary = summarise(query)
    write_record(folder / SUMMARY, CorpusSummary, summary | told)
    if not summary["n_kept"]:
        raise DataError("every document was withdrawn", fix="Nothing is left to train on")
    if said := unmatched_words(requests):
        workspace.progress.log(f"{said}. {folder / REQUESTS} tells of each request.")


def _by_language(query: Query) -> dict[str, Any]:
    """Documents and bytes before, and how many of both went; what was planted is not counted."""
    languages = query.rows(
        "with before as (select language, count(*) as documents, sum(bytes)::bigint as bytes "
        "from (select language, bytes_out as bytes from ledger where decision = 'kept' and "
        "consent <> 'planted' union all select language, bytes from withdrawn "
        "where probe_id = '') group by language), "
        "gone as (select language, count(*) as documents, sum(bytes)::bigint as bytes "
        "from withdrawn where probe_id = '' group by language) "
        "select b.language, b.documents, coalesce(g.documents, 0), b.bytes, "
        "coalesce(g.bytes, 0) from before b left join gone g on b.language = g.language "
        "order by b.bytes desc, b.language"
    )
    return {
        language: {
            "documents": before,
            "withdrawn": gone,
            "bytes": size,
            "withdrawn_bytes": lost,
            "share": round(lost / size, 6) if size else 0.0,
        }
        for language, before, gone, size, lost in languages
    }


def _take_probes(query: Query, stored: Path, left: Path) -> int:
    """Write probes.json without what was withdrawn; how many probes and canaries that were.

    A canary that lost one of its copies is taken out, too: it stands less often than it says.
    """
    gone = {name for (name,) in query.rows("select distinct probe_id from withdrawn")}
    plain = read_json(stored)
    before = plain.get("withdrawn", [])
    for kind in ("probes", "canaries"):
        rows = plain.get(kind, [])
        before += [row["probe_id"] for row in rows if row["probe_id"] in gone]
        plain[kind] = [row for row in rows if row["probe_id"] not in gone]
    write_json(left, plain | {"withdrawn": before})
    return len(gone - {""})


def _lost_twins(query: Query) -> dict[str, int]:
    """Documents dropped, by reason, because one stood for them that is withdrawn by its host's word."""
    return dict(
        query.rows(
            "select l.reason, count(*) from ledger l semi join "
            "(select document_id from withdrawn where reason <> 'deletion_request') w "
            "on l.duplicate_of = w.document_id where l.decision = 'dropped' "
            "group by l.reason order by l.reason"
        )
    )


def _requests(query: Query, folder: Path, deletions: Iterable[Path]) -> dict[str, Any]:
    """Write what became of each request; the same, counted."""
    query.view("asked", parts(folder, "asked"))
    sums = {
        key: (withdrawn, before)
        for key, withdrawn, before in query.stream(
            "select key, sum(withdrawn)::bigint, sum(out_before)::bigint from asked "
            "group by key order by key"
        )
    }
    rows = answered(
        read_deletions(deletions),
        {key: withdrawn for key, (withdrawn, _) in sums.items()},
        {key: before for key, (_, before) in sums.items()},
    )
    write_whole(folder / REQUESTS, REQUESTS_SCHEMA, rows)
    return outcomes(read_rows(folder / REQUESTS))


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
