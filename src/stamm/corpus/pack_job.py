"""Packing job: documents in a fixed order as token shards, with a manifest and sidecars.

order-train.parquet and order-held_out.parquet contain the order: the document at each position and
the place of its tokens.

Each source of a data mixture is read in its own order, by SHA-256 of "pack {seed} epoch {e} {document_id}", and again
from the start, in another order, when it ends. A stage reads tokens of each of its sources according
to its shares, from where the previous stage stopped. The documents of a stage are then sorted by
SHA-256 of "pack {seed} {stage} {document_id} {occurrence}", so that its sources are mixed evenly. The
order depends on content, seed and configuration only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers
from stamm.base.schema import write_record
from stamm.corpus.config import PackConfig, SourceShare, Stage
from stamm.corpus.ledger import HELD_OUT, TRAIN
from stamm.corpus.packed_dataset import MANIFEST, SIDECAR_SCHEMA
from stamm.corpus.query import Query, opened, pattern
from stamm.corpus.records import PackManifest
from stamm.corpus.shards import TokenShard, open_shard, write_shard
from stamm.corpus.tables import TableWriter, parts
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores, run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, read_manifests

Where = tuple[str, dict[str, str]]
"""A condition on `source` and `language`, and the values that it names."""

_OWN = f"split = '{TRAIN}' and probe_id is null"
ORDER_COLUMNS = (
    "number, stage, shard, start, tokens, bytes, document_id, language, source, licence, url, "
    "probe_id, occurrence"
)


def order_documents(query: Query, config: PackConfig) -> list[dict[str, Any]]:
    """Create the table `ordered`: every occurrence of a document in train or held_out, numbered.

    query    has a view called documents (tokenize_job.INDEX_SCHEMA and `shard`)
    Returns  documents and tokens of each source in each stage of the training stream
    Raises   DataError when a stage names a missing source, would repeat one more often than its
             `most_epochs`, or gets no document.
    """
    query.run(
        "create temp table occurrences (split varchar, stage integer, shard integer, "
        "start bigint, occurrence bigint, key varchar)"
    )
    _whole(query, config, HELD_OUT)
    if not config.stages:
        _whole(query, config, TRAIN)
        stages: list[dict[str, Any]] = []
    else:
        stages = _staged(query, config)
    query.run(
        "create temp table ordered as select o.split, "
        "row_number() over (partition by o.split order by o.stage, o.key, d.document_id, "
        "o.occurrence, d.probe_id nulls first) - 1 as number, o.stage, o.shard, d.start, d.tokens, d.bytes, "
        "d.document_id, d.language, d.source, d.licence, d.url, d.probe_id, o.occurrence "
        "from occurrences o join documents d on o.shard = d.shard and o.start = d.start"
    )
    return stages


def write_order(query: Query, split: str, path: Path) -> None:
    """Write the occurrences of one split to a Parquet file, in their order."""
    query.write(
        f"select {ORDER_COLUMNS} from ordered where split = '{split}' order by number", path
    )


def _whole(query: Query, config: PackConfig, split: str) -> None:
    """Insert every document `repeat` times: the order of a stream without stages."""
    query.run(
        "insert into occurrences select d.split, 0, d.shard, d.start, r.occurrence, "
        "sha256('pack ' || $seed || ' ' || d.document_id || ' ' || r.occurrence) "
        "from documents d, lateral (select unnest(range(d.repeat)) as occurrence) r "
        "where d.split = $split",
        {"seed": str(config.seed), "split": split},
    )


def _staged(query: Query, config: PackConfig) -> list[dict[str, Any]]:
    _plant(query, config)
    query.run(
        "create temp table sources as select source, language, sum(tokens)::bigint as tokens "
        f"from documents where {_OWN} group by source, language"
    )
    epochs_read: dict[tuple[str, str], float] = {}
    held: dict[tuple[str, str], int] = {}
    read: list[tuple[int, Where, float, float]] = []
    stages = []
    for number, stage in enumerate(config.stages):
        wheres = [_matching(config, number, position) for position in range(len(stage.sources))]
        shares = []
        for share, where in zip(stage.sources, wheres, strict=True):
            key = share.source, share.language
            size = _tokens(query, where)
            if not size:
                raise DataError(
                    f"stage {stage.name}: no document of source {share.source!r} in language "
                    f"{share.language!r} is left for it",
                    where="pack.stages",
                    fix="Correct the pattern, or put the narrower share before the wider one",
                )
            if held.setdefault(key, size) != size:
                raise DataError(
                    f"stage {stage.name}: source {share.source!r} in language {share.language!r} "
                    "does not hold the documents that it held in an earlier stage",
                    where="pack.stages",
                    fix="Put the same narrower shares before it in every stage that reads it",
                )
            begin = epochs_read.get(key, 0.0)
            epochs = _epochs(stage, share, size)
            before = sum(
                (last - first) * (_tokens(query, where, other) / size)
                for _, other, first, last in read
            )
            _check_epochs(stage, share, size, before, epochs)
            epochs_read[key] = begin + epochs
            shares.append(
                {
                    "source": share.source,
                    "language": share.language,
                    "tokens_there": size,
                    "epochs_before": round(begin, 6),
                    "epochs_after": round(begin + epochs, 6),
                }
            )
            read.append((number, where, begin, begin + epochs))
        stages.append({"name": stage.name, "sources": shares})
    for number, where, begin, end in read:
        _take(query, config, number, where, begin, end)
    _check_stages(query, config)
    return stages


def _check_stages(query: Query, config: PackConfig) -> None:
    stages_with_documents = query.rows(
        "select distinct stage from occurrences where split = $split", {"split": TRAIN}
    )
    for number, stage in enumerate(config.stages):
        if (number,) not in stages_with_documents:
            raise DataError(
                f"stage {stage.name} contains no document: none begins in the part of its sources "
                "that it reads",
                where="pack.stages",
                fix="Give it more tokens or epochs",
            )


def _plant(query: Query, config: PackConfig) -> None:
    """Insert planted documents into one stage, with their repeats."""
    names = [stage.name for stage in config.stages]
    stage = names.index(config.planted_in) if config.planted_in else 0
    query.run(
        "insert into occurrences select d.split, $stage, d.shard, d.start, r.occurrence, "
        "sha256('pack ' || $seed || ' ' || $name || ' ' || d.document_id || ' ' || r.occurrence) "
        "from documents d, lateral (select unnest(range(d.repeat)) as occurrence) r "
        "where d.split = $split and d.probe_id is not null",
        {"stage": stage, "seed": str(config.seed), "name": names[stage], "split": TRAIN},
    )


def _matching(config: PackConfig, number: int, position: int) -> Where:
    """The documents of a share: those it matches and no earlier share of the stage does."""
    clauses: list[str] = []
    values: dict[str, str] = {}
    for at, share in enumerate(config.stages[number].sources[: position + 1]):
        name = f"{number}_{at}"
        clause = f"(source glob $source{name} and language glob $language{name})"
        clauses.append(clause if at == position else f"not {clause}")
        values |= {
            f"source{name}": pattern(share.source),
            f"language{name}": pattern(share.language),
        }
    return " and ".join(clauses), values


def _tokens(query: Query, *wheres: Where) -> int:
    """Tokens of the documents that several shares match, read once."""
    clauses = " and ".join(clause for clause, _ in wheres)
    values = {name: value for _, values in wheres for name, value in values.items()}
    ((size,),) = query.rows(
        f"select coalesce(sum(tokens), 0)::bigint from sources where {clauses}", values
    )
    return int(size)


def _epochs(stage: Stage, share: SourceShare, size: int) -> float:
    """Number of epochs of a share in a stage."""
    if share.epochs is not None:
        return share.epochs
    total = sum(other.weight or 0.0 for other in stage.sources)
    return (stage.tokens or 0) * (share.weight or 0.0) / total / size


def _check_epochs(
    stage: Stage, share: SourceShare, size: int, before: float, epochs: float
) -> None:
    """Raise DataError when a weight repeats its documents too often over all stages so far.

    before   epochs in earlier stages; the mean where their shares match only some documents
    """
    if share.epochs is not None or before + epochs <= share.most_epochs * (1 + 1e-9):
        return
    after = f", after {before:.2f} times in the stages before it" if before else ""
    raise DataError(
        f"stage {stage.name} would read source {share.source!r} {epochs:.2f} times{after}: "
        f"it has {size} tokens and {round(epochs * size)} are required",
        where="pack.stages",
        fix=f"Lower its weight, or set most_epochs={math.ceil(before + epochs)}",
    )


def _take(
    query: Query, config: PackConfig, number: int, where: Where, begin: float, end: float
) -> None:
    """Insert the documents of a source that begin between two points of its endless stream.

    A point counts epochs: 1.25 is a quarter of the second reading.
    """
    clause, values = where
    for epoch in range(math.floor(begin), math.ceil(end)):
        low, high = max(begin - epoch, 0.0), min(end - epoch, 1.0)
        query.run(
            "insert into occurrences select 'train', $stage, shard, start, $epoch::bigint, "
            "sha256('pack ' || $seed || ' ' || $name || ' ' || document_id || ' ' || $epoch) from ("
            "select d.shard, d.start, d.document_id, "
            "(sum(d.tokens) over reading - d.tokens) / (sum(d.tokens) over ())::double as place "
            f"from documents d where {_OWN} and {clause} window reading as (order by "
            "sha256('pack ' || $seed || ' epoch ' || $epoch || ' ' || d.document_id), "
            "d.document_id rows unbounded preceding)) where place >= $low and place < $high",
            values
            | {
                "stage": number,
                "epoch": str(epoch),
                "seed": str(config.seed),
                "name": config.stages[number].name,
                "low": low,
                "high": high,
            },
        )


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
    manifests = read_manifests(tokens)
    facts = next(iter(manifests.values()))["facts"]
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
            "tokens": {name: manifest["outputs"] for name, manifest in manifests.items()},
        },
        code_packages=("corpus", "tokenizer"),
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
