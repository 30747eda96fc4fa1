"""Packing job: documents in a fixed order as token shards, with a manifest and sidecars.

order-train.parquet and order-held_out.parquet contain the order: the document at each position and
the place of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers
from stamm.base.schema import write_record
from stamm.corpus.held_out import HELD_OUT, TRAIN
from stamm.corpus.mixture import order_documents, write_order
from stamm.corpus.pack_config import PackConfig
from stamm.corpus.packed_dataset import MANIFEST, SIDECAR_SCHEMA
from stamm.corpus.query import Query, opened
from stamm.corpus.shards import TokenShard, open_shard, write_shard
from stamm.corpus.tables import TableWriter, parts
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores, run_shards
from stamm.runs.schemas.corpus import PackManifest
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, read_manifests

ORDER_RULE = (
    "Each document occurs `repeat` times in its split, and every occurrence is a document of its "
    "own. Occurrences are sorted by SHA-256 of the text 'pack {seed} {document_id} {occurrence}', "
    "occurrence counting from 0; each is <s>, its tokens, </s>. A shard ends with the document "
    "that brings it to shard_tokens. With stages, a source is read in the order of SHA-256 of "
    "'pack {seed} epoch {e} {document_id}', a stage continues where the previous one stopped, and its "
    "documents are sorted by SHA-256 of 'pack {seed} {stage} {document_id} {occurrence}'."
)
_SHARD_MEMORY_GIB = 0.5
_MOST_OPEN = 128  # each holds a file descriptor
_COPIED = tuple(name for name in SIDECAR_SCHEMA.names if name not in ("start", "stop"))


def pack(config: PackConfig, workspace: Workspace) -> None:
    """Write the shards of both splits, their sidecars, the order, and manifest.json last.

    Reads    inputs["tokens"]
    Raises   DataError when the train split is empty or a stage cannot be filled.
    """
    folder, tokens = workspace.folder, workspace.inputs["tokens"]
    remove_leftovers(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    made = read_manifests(tokens)
    facts = next(iter(made.values()))["facts"]
    orders = {split: folder / f"order-{split}.parquet" for split in (TRAIN, HELD_OUT)}
    with opened(folder, config.memory_gib, cores()) as query:
        query.view("shards", parts(tokens, "index"))
        query.run(
            "create view documents as select *, cast(regexp_extract(filename, "
            "'index-(\\d+)\\.parquet$', 1) as integer) as shard from shards"
        )
        mixture = order_documents(query, config)
        cuts = {split: list(_cuts(query, split, config.shard_tokens)) for split in orders}
        if not cuts[TRAIN]:
            raise DataError(f"{tokens} contains no document to train on", fix="Build the corpus")
        for split, path in orders.items():
            with atomic(path) as temporary:
                write_order(query, split, temporary)
        splits = {split: _counts(query, split) for split in orders}
    job = ShardedJob(
        folder=folder,
        work="stamm.corpus.pack_job:pack_shard",
        settings={
            "type_code": facts["type_code"],
            "tokens": {name: manifest["outputs"] for name, manifest in made.items()},
        },
        code_packages=("corpus",),
        common={split: str(path.resolve()) for split, path in orders.items()},
        places={"tokens": str(tokens.resolve())},
        shards=tuple(
            ShardTask(name=f"{split}-{number:05d}", inputs={}, extra={"split": split, **cut})
            for split in orders
            for number, cut in enumerate(cuts[split])
        ),
    )
    shards = run_shards(job, workspace, "pack")
    for task, shard in zip(job.shards, shards, strict=True):
        splits[task.extra["split"]]["shards"].append(_entry(task, shard))
    if mixture:
        for stage, sources in zip(splits[TRAIN]["stages"], mixture, strict=True):
            stage |= sources
    write_record(
        folder / MANIFEST,
        PackManifest,
        {
            "tokenizer_sha256": facts["tokenizer_sha256"],
            "vocabulary": facts["vocabulary"],
            "token_type": "uint16" if facts["type_code"] == 8 else "int32",
            "config": to_plain(config),
            "order": ORDER_RULE,
            "splits": splits,
        },
    )


def pack_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Copy the documents of one range of the order into a shard, and write its sidecar."""
    split, name = task.extra["split"], task.name
    tokens, code = Path(job.places["tokens"]), job.settings["type_code"]
    sidecar = f"{name}.documents.parquet"
    opened_shards: dict[int, TokenShard] = {}
    begin = at = task.extra["start"]

    def documents(query: Query, rows: TableWriter) -> Iterator[NDArray[np.integer[Any]]]:
        nonlocal at
        for row in _shard_rows(query, task):
            shard = row["shard"]
            if shard not in opened_shards:
                if len(opened_shards) >= _MOST_OPEN:
                    del opened_shards[next(iter(opened_shards))]
                opened_shards[shard] = open_shard(tokens / f"tokens-{shard:05d}")
            stop = at + row["tokens"]
            rows.add({key: row[key] for key in _COPIED} | {"start": at, "stop": stop})
            at = stop
            yield opened_shards[shard].tokens[row["start"] : row["start"] + row["tokens"]]

    with (
        atomic(job.folder / sidecar) as path,
        TableWriter(path, SIDECAR_SCHEMA) as rows,
        opened(job.folder, _SHARD_MEMORY_GIB, 1, name) as query,
    ):
        query.view("placed", [Path(job.common[split])])
        write_shard(job.folder / name, documents(query, rows), code)
    return ShardResult(
        outputs=(f"{name}.bin", f"{name}.idx", sidecar),
        num_read=task.extra["documents"],
        kept=rows.count,
        facts={"tokens": at - begin},
    )


def _cuts(query: Query, split: str, limit: int) -> Iterator[dict[str, int]]:
    """First document, number of documents and first token of each shard of a split."""
    number = at = size = documents = 0
    ordered = "select tokens from ordered where split = $split order by number"
    for (tokens,) in query.stream(ordered, {"split": split}):
        size, documents = size + tokens, documents + 1
        if size >= limit:
            yield {"first": number, "documents": documents, "start": at}
            number, at, size, documents = number + documents, at + size, 0, 0
    if documents:
        yield {"first": number, "documents": documents, "start": at}


def _shard_rows(query: Query, task: ShardTask) -> Iterator[dict[str, Any]]:
    """The rows of the order that belong to a shard."""
    names = ("shard", "tokens", *_COPIED)
    first, count = task.extra["first"], task.extra["documents"]
    rows = query.stream(
        f"select {', '.join(names)}, start from placed where number >= $first and "
        "number < $stop order by number",
        {"first": first, "stop": first + count},
    )
    for row in rows:
        yield dict(zip((*names, "start"), row, strict=True))


def _counts(query: Query, split: str) -> dict[str, Any]:
    """Tokens and documents of a split, by language and by stage."""
    ((documents, tokens, planted, planted_tokens),) = query.rows(
        "select count(*), coalesce(sum(tokens), 0)::bigint, count(probe_id), "
        "coalesce(sum(tokens) filter (probe_id is not null), 0)::bigint "
        "from ordered where split = $split",
        {"split": split},
    )
    languages = query.rows(
        "select language, sum(tokens)::bigint as n from ordered where split = $split "
        "group by language order by n desc, language",
        {"split": split},
    )
    stages = query.rows(
        "select count(*), sum(tokens)::bigint from ordered where split = $split "
        "group by stage order by stage",
        {"split": split},
    )
    return {
        "tokens": tokens,
        "documents": documents,
        "planted_documents": planted,
        "planted_tokens": planted_tokens,
        "tokens_by_language": dict(languages),
        "stages": [{"documents": count, "tokens": size} for count, size in stages],
        "shards": [],
    }


def _entry(task: ShardTask, shard: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": task.name,
        "tokens": shard["facts"]["tokens"],
        "documents": shard["kept"],
        "sha256": {
            output.removeprefix(task.name): facts["sha256"]
            for output, facts in shard["outputs"].items()
        },
    }
