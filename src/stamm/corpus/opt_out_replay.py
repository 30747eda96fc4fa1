"""Opt-out replay: remove documents with a newer opt-out or a deletion request from a finished corpus.

Opt-outs are read from newer snapshots of robots.txt, tdmrep.json and ai.txt and from domain lists;
deletion requests name a URL, its hash or a document.

Nothing is extracted, filtered or tokenized again. Global decisions are kept: which of several
duplicates was kept, the thresholds of scores, the held-out split, the vocabulary. A dropped document
is never restored, neither by a later permission nor when the document of which it was a duplicate is
removed; summary.json counts the latter.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, canonical_json, read_json, remove_leftovers, write_json
from stamm.base.json_text import parse_json
from stamm.base.schema import write_record
from stamm.corpus.config import PROBES, ReplayConfig
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.consent.snapshot import index_snapshots
from stamm.corpus.deletions import (
    REQUESTS_SCHEMA,
    Deletions,
    outcomes,
    read_deletions,
    request_rows,
    unmatched_text,
)
from stamm.corpus.documents import Signals
from stamm.corpus.inputs import expand
from stamm.corpus.ledger import DROPPED, KEPT, LATER_COLUMNS, PLANTED
from stamm.corpus.query import Query, opened
from stamm.corpus.records import CorpusSummary
from stamm.corpus.summary import SUMMARY, summarise
from stamm.corpus.tables import (
    DOCUMENTS_SCHEMA,
    LEDGER_SCHEMA,
    TableWriter,
    columns,
    part,
    parts,
    read_rows,
    require_columns,
    schema_of,
    write_whole,
)
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores, run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

WITHDRAWN = "withdrawn.parquet"
RANGES = "token_ranges.parquet"
REQUESTS = "requests.parquet"
WITHDRAWN_SCHEMA = columns(
    "document_id url host language reason rule agent read shard bytes:int64 probe_id"
)
_ASKED_SCHEMA = columns("key withdrawn:int64 out_before:int64")
_DUPLICATE_TEXT = {"exact_duplicate": "the same text", "near_duplicate": "nearly the same text"}
_ROLES = ("robots", "domains", "deletions")


def replay(config: ReplayConfig, workspace: Workspace) -> None:
    """Write the corpus without the withdrawn documents, and the lists of these.

    Reads    inputs["corpus"], and inputs["pack"] if given
    Writes   documents and ledger of every shard; withdrawn.parquet, one row per document;
             token_ranges.parquet, one row per range of the packed corpus; requests.parquet, one row
             per deletion request; probes.json without withdrawn passages; summary.json
    Raises   DataError when no document is left.
    """
    folder, corpus = workspace.folder, workspace.inputs["corpus"]
    remove_leftovers(folder)
    required = pa.schema([field for field in LEDGER_SCHEMA if field.name not in LATER_COLUMNS])
    for path in parts(corpus, "ledger"):
        require_columns(path, required)
    lists = {role: expand(getattr(config, role), f"replay.{role}") for role in _ROLES}
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(corpus, "ledger"), union=True)
        duplicates = folder / "duplicates.json"
        deletions = Deletions(read_deletions(lists["deletions"].values()))
        write_json(duplicates, kept_duplicates(query, deletions))
    index_snapshots(lists["robots"].values(), config.limits)
    common = {f"{role}.{name}": str(p) for role in lists for name, p in lists[role].items()}
    job = ShardedJob(
        folder=folder,
        work="stamm.corpus.opt_out_replay:replay_shard",
        settings=to_plain(config),
        code_packages=("corpus", "tokenizer"),
        common={**common, "duplicates": str(duplicates.resolve())},
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
    _write_results(config, workspace, lists["deletions"].values())


def replay_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Check every kept document of a shard again.

    Raises   DataError when documents and ledger do not belong together.
    """
    policies, deletions, duplicates = _load(canonical_json(job.settings), common_files(job))
    outputs = {kind: part(kind, task.name) for kind in ("documents", "ledger", "withdrawn")}
    schemas = (DOCUMENTS_SCHEMA, schema_of(Path(task.inputs["ledger"])), WITHDRAWN_SCHEMA)
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
        for stored in read_rows(Path(task.inputs["ledger"])):
            row = LATER_COLUMNS | stored
            keys = deletions.keys(row["url"], row["document_id"])
            if row["decision"] != KEPT:
                out_before.update(keys)
                ledger.add(row)
                continue
            document = next(documents_in, None)
            if document is None or document["document_id"] != row["document_id"]:
                raise _mismatch(task)
            count += 1
            size = row["bytes_out"]
            duplicate = duplicates.get(row["document_id"])
            withdrew.update(keys or ([duplicate["key"]] if duplicate else []))
            rule = deletions.rule(keys[0]) if keys else duplicate["rule"] if duplicate else ""
            if _withdraw(row, rule, policies):
                dropped[row["reason"]] += 1
                consent_fields = {"read": row["robots_read"], "probe_id": row["probe_id"] or ""}
                withdrawn.add(row | consent_fields | {"shard": task.name, "bytes": size})
            else:
                documents.add(document)
            ledger.add(row)
        if next(documents_in, None) is not None:
            raise _mismatch(task)
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


def _withdraw(row: dict[str, Any], request: str, policies: ConsentPolicies) -> bool:
    """Whether a request or a newer opt-out withdraws a document; updates the row with its source."""
    if request:
        row |= {"reason": "deletion_request", "rule": request, "agent": "", "robots_read": ""}
    elif row["consent"] == PLANTED:
        return False  # a planted passage, not a page of a host
    else:
        refusal = _refusal(row["url"], policies)
        if not refusal:
            return False
        row |= refusal
    row |= {"decision": DROPPED, "bytes_out": 0, "split": ""}
    return True


def _refusal(url: str, policies: ConsentPolicies) -> dict[str, str]:
    """The newer opt-out for a URL, {} without one. Pages are not read again."""
    decision = policies.decide(url)
    if not decision.allowed:
        opt_out = {"reason": decision.consent, "consent": decision.consent, "rule": decision.rule}
        return opt_out | {"agent": decision.agent, "robots_read": decision.read}
    refusal = policies.refusal_before_parsing(url, decision.host, Signals(), is_html=False)
    if refusal is None:
        return {}
    return {"reason": refusal.reason, "rule": refusal.rule, "agent": refusal.agent}


def kept_duplicates(query: Query, deletions: Deletions) -> dict[str, dict[str, str]]:
    """Documents kept as the duplicate of one that a deletion request names, by document id.

    A request for a URL applies to its text, whichever document it was kept from.
    """
    dropped = query.stream(
        "select document_id, url, duplicate_of, reason from ledger where duplicate_of <> '' "
        "order by document_id, url, duplicate_of, reason"
    )
    requests_by_document: dict[str, dict[str, str]] = {}
    for document_id, url, kept, reason in dropped:
        keys = deletions.keys(url, document_id)
        if keys:
            like = _DUPLICATE_TEXT.get(reason, "the same text")
            rule = f"{deletions.rule(keys[0])}, of which this is {like}"
            requests_by_document.setdefault(kept, {"key": keys[0], "rule": rule})
    return requests_by_document


@functools.lru_cache(maxsize=1)
def _load(
    settings: bytes, common: tuple[tuple[str, str, str], ...]
) -> tuple[ConsentPolicies, Deletions, dict[str, dict[str, str]]]:
    config = from_plain(ReplayConfig, parse_json(settings))
    files: dict[str, dict[str, Path]] = {role: {} for role in (*_ROLES, "duplicates")}
    for role, path, _ in common:
        kind, _, name = role.partition(".")
        files[kind][name] = Path(path)
    robots = tuple(files["robots"].values())
    policies = load_policies(config.consent, robots, files["domains"], config.limits)
    deletions = Deletions(read_deletions(files["deletions"].values()))
    return policies, deletions, read_json(files["duplicates"][""])


def _mismatch(task: ShardTask) -> DataError:
    return DataError(
        f"documents and ledger of shard {task.name} do not belong together",
        fix="Build the corpus again",
    )


def _write_results(config: ReplayConfig, workspace: Workspace, deletions: Iterable[Path]) -> None:
    folder, corpus = workspace.folder, workspace.inputs["corpus"]
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(folder, "ledger"), union=True)
        query.view("withdrawn", parts(folder, "withdrawn"))
        with atomic(folder / WITHDRAWN) as path:
            query.write(
                f"select {', '.join(WITHDRAWN_SCHEMA.names)} from withdrawn "
                "order by document_id, shard, url",
                path,
            )
        tokens = _ranges(query, workspace)
        requests = _requests(query, folder, deletions)
        replayed = {
            "withdrawn_by_reason": dict(
                query.rows(
                    "select reason, count(*) as n from withdrawn where probe_id = '' "
                    "group by reason order by n desc, reason"
                )
            ),
            "withdrawn_tokens": tokens,
            "withdrawn_by_language": _by_language(query),
            "withdrawn_probes": _write_probes(query, corpus / PROBES, folder / PROBES),
            "duplicates_not_brought_back": _lost_duplicates(query),
            "deletion_requests": requests,
        }
        summary = summarise(query)
    write_record(folder / SUMMARY, CorpusSummary, summary | replayed)
    if not summary["n_kept"]:
        raise DataError("every document was withdrawn", fix="Nothing is left to train on")
    if unmatched := unmatched_text(requests):
        workspace.progress.log(f"{unmatched}. {folder / REQUESTS} lists every request.")


def _by_language(query: Query) -> dict[str, Any]:
    """Documents and bytes before, and withdrawn ones, by language, without planted passages."""
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
    names = ("documents", "withdrawn", "bytes", "withdrawn_bytes")
    return {
        language: dict(zip(names, counts, strict=True))
        | {"share": round(counts[3] / counts[2], 6) if counts[2] else 0.0}
        for language, *counts in languages
    }


def _write_probes(query: Query, stored: Path, remaining: Path) -> int:
    """Write probes.json without withdrawn passages; the number of withdrawn probes and canaries.

    A canary of which one copy is withdrawn is removed, because its number of repeats is wrong.
    """
    withdrawn_ids = {name for (name,) in query.rows("select distinct probe_id from withdrawn")}
    plain = read_json(stored)
    before = plain.get("withdrawn", [])
    for kind in ("probes", "canaries"):
        rows = plain.get(kind, [])
        before += [row["probe_id"] for row in rows if row["probe_id"] in withdrawn_ids]
        plain[kind] = [row for row in rows if row["probe_id"] not in withdrawn_ids]
    write_json(remaining, plain | {"withdrawn": before})
    return len(withdrawn_ids - {""})


def _lost_duplicates(query: Query) -> dict[str, int]:
    """Documents dropped as duplicates of one that its host's opt-out withdraws, by reason."""
    return dict(
        query.rows(
            "select l.reason, count(*) from ledger l semi join "
            "(select document_id from withdrawn where reason <> 'deletion_request') w "
            "on l.duplicate_of = w.document_id where l.decision = 'dropped' "
            "group by l.reason order by l.reason"
        )
    )


def _requests(query: Query, folder: Path, deletions: Iterable[Path]) -> dict[str, Any]:
    """Write the outcome of each request; counts of the outcomes."""
    query.view("asked", parts(folder, "asked"))
    sums = {
        key: (withdrawn, before)
        for key, withdrawn, before in query.stream(
            "select key, sum(withdrawn)::bigint, sum(out_before)::bigint from asked "
            "group by key order by key"
        )
    }
    rows = request_rows(
        read_deletions(deletions),
        {key: withdrawn for key, (withdrawn, _) in sums.items()},
        {key: before for key, (_, before) in sums.items()},
    )
    write_whole(folder / REQUESTS, REQUESTS_SCHEMA, rows)
    return outcomes(read_rows(folder / REQUESTS))


def _ranges(query: Query, workspace: Workspace) -> dict[str, int]:
    """Write the token ranges of withdrawn documents in the packed corpus; tokens by split."""
    folder = workspace.folder
    schema = columns("document_id split shard occurrence:int64 start:int64 stop:int64")
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
