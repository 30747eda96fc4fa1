"""Job that applies the global decisions to each shard and writes the final documents and ledger."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import atomic, read_json, remove_leftovers
from stamm.base.receipts import check_file
from stamm.base.schema import write_record
from stamm.corpus.config import PROBES, PROBES_SCHEMA, PROBES_SHARD, GlobalFilterConfig
from stamm.corpus.inputs import SKIPPED_FILES
from stamm.corpus.ledger import DROPPED, KEPT
from stamm.corpus.query import opened
from stamm.corpus.readers.rows import summed_fields
from stamm.corpus.records import CorpusSummary
from stamm.corpus.summary import SUMMARY, require_kept, summarise
from stamm.corpus.tables import (
    DOCUMENTS_SCHEMA,
    Row,
    TableWriter,
    part,
    parts,
    read_rows,
    schema_of,
)
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores, run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, read_manifests

_KINDS = ("documents", "ledger")


def finalize_corpus(config: GlobalFilterConfig, workspace: Workspace) -> None:
    """Write documents and ledger of every shard, then probes.json and summary.json.

    Reads    inputs["filtered"], inputs["global_filter"] and, where something is planted,
             inputs["canaries"], which becomes the last shard.
    Raises   DataError when nothing was kept.
    """
    folder, inputs = workspace.folder, workspace.inputs
    remove_leftovers(folder)
    filtered = read_manifests(inputs["filtered"])
    names = list(filtered)
    tasks = [
        ShardTask(
            name=name,
            inputs={
                kind: str((inputs[step] / part(kind, name)).resolve())
                for step, kind in (
                    ("filtered", "documents"),
                    ("filtered", "ledger"),
                    ("global_filter", "decisions"),
                )
            },
        )
        for name in names
    ]
    if "canaries" in inputs:
        tasks.append(
            ShardTask(
                name=f"{len(names):05d}",
                inputs={
                    k: str((inputs["canaries"] / part(k, PROBES_SHARD)).resolve()) for k in _KINDS
                },
            )
        )
    job = ShardedJob(
        folder=folder,
        work="stamm.corpus.finalize_job:finalize_shard",
        settings={},
        code_packages=("corpus", "tokenizer"),
        shards=tuple(tasks),
    )
    run_shards(job, workspace, "finalize")
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("ledger", parts(folder, "ledger"), union=True)
        summary = summarise(query)
        require_kept(summary, query)
    summary |= summed_fields(manifest["facts"] for manifest in filtered.values())
    skipped = inputs["filtered"] / SKIPPED_FILES
    summary["skipped_files"] = read_json(skipped) if skipped.is_file() else {}
    write_record(folder / SUMMARY, CorpusSummary, summary)
    with atomic(folder / PROBES) as path:
        if "canaries" in inputs:
            check_file(inputs["canaries"] / PROBES)
            shutil.copyfile(inputs["canaries"] / PROBES, path)
        else:
            path.write_text(
                f'{{"schema": {PROBES_SCHEMA}, "repeats": [], "probes": [], "canaries": []}}\n'
            )


def finalize_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Join documents, ledger and global decisions of a shard; planted passages are copied.

    Raises   DataError when the two do not belong together.
    """
    outputs = {kind: part(kind, task.name) for kind in _KINDS}
    if "decisions" not in task.inputs:
        for kind, output in outputs.items():
            with atomic(job.folder / output) as path:
                check_file(Path(task.inputs[kind]))
                shutil.copyfile(task.inputs[kind], path)
        count = sum(1 for _ in read_rows(_path(task, "ledger"), ["document_id"]))
        return ShardResult(outputs=tuple(outputs.values()), num_read=count, kept=count)
    schemas = (DOCUMENTS_SCHEMA, schema_of(_path(task, "ledger")))
    dropped: Counter[str] = Counter()
    count = 0
    with ExitStack() as stack:
        documents, ledger = (
            stack.enter_context(
                TableWriter(stack.enter_context(atomic(job.folder / outputs[kind])), schema)
            )
            for kind, schema in zip(_KINDS, schemas, strict=True)
        )
        for row, document, decision in _joined(task):
            count += 1
            if document is not None and decision is not None:
                row |= {key: decision[key] for key in ("reason", "detail", "duplicate_of", "split")}
                if row["reason"]:
                    row |= {"decision": DROPPED, "bytes_out": 0}
                else:
                    final = {"split": decision["split"], "probe_id": None, "repeat": 1}
                    documents.add({**document, **final})
            ledger.add(row)
            if row["decision"] != KEPT:
                dropped[row["reason"]] += 1
    return ShardResult(
        outputs=tuple(outputs.values()),
        num_read=count,
        kept=count - dropped.total(),
        dropped=dropped,
    )


def _joined(task: ShardTask) -> Iterator[tuple[dict[str, Any], Row | None, Row | None]]:
    """Each ledger row, with document and decision if the document filters kept it."""
    documents = read_rows(_path(task, "documents"))
    decisions = read_rows(_path(task, "decisions"))
    pair = _next_pair(documents, decisions, task)
    for position, row in enumerate(read_rows(_path(task, "ledger"))):
        if pair is not None and pair[0]["position"] == position:
            yield row, *pair
            pair = _next_pair(documents, decisions, task)
        else:
            yield row, None, None
    if pair is not None:
        raise _mismatch(task)


def _next_pair(
    documents: Iterator[dict[str, Any]], decisions: Iterator[dict[str, Any]], task: ShardTask
) -> tuple[Row, Row] | None:
    document, decision = next(documents, None), next(decisions, None)
    if document is None and decision is None:
        return None
    if document is None or decision is None or document["position"] != decision["position"]:
        raise _mismatch(task)
    return document, decision


def _mismatch(task: ShardTask) -> DataError:
    return DataError(
        f"the documents, ledger and decisions of shard {task.name} do not belong together",
        fix="Delete the folders filtered and global_filter of the run, and run again",
    )


def _path(task: ShardTask, kind: str) -> Path:
    return Path(task.inputs[kind])
