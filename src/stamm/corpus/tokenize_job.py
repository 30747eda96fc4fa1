"""Tokenization job: documents to token ids, shard by shard, in the order of the corpus.

Writes for shard k tokens-k.bin and tokens-k.idx (the layout of shards.py) and index-k.parquet with
the range of each document.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers
from stamm.corpus.shards import open_shard, token_type, type_code, write_shard
from stamm.corpus.tables import TableWriter, columns, part, parts, read_rows
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files, read_manifests
from stamm.tokenizer.tokenizer import FILE, Tokenizer

INDEX_SCHEMA = columns(
    "document_id language source licence url split probe_id repeat:int64 start:int64 tokens:int64 "
    "bytes:int64"
)
"""One row per document: its first token in the shard, <s>, and how many there are with </s>."""


def tokenize(config: TokenizeConfig, workspace: Workspace) -> None:
    """Encode every shard of inputs["corpus"] with inputs["tokenizer"]."""
    remove_leftovers(workspace.folder)
    job = ShardedJob(
        folder=workspace.folder,
        work="stamm.corpus.tokenize_job:tokenize_shard",
        settings={},
        code_packages=("corpus", "tokenizer"),
        common={"tokenizer": str((workspace.inputs["tokenizer"] / FILE).resolve())},
        shards=tuple(
            ShardTask(name=path.stem.partition("-")[2], inputs={"documents": str(path.resolve())})
            for path in parts(workspace.inputs["corpus"], "documents")
        ),
    )
    run_shards(job, workspace, "tokenize")


def tokenize_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Encode the documents of one shard."""
    tokenizer = _tokenizer(common_files(job))
    code = type_code(tokenizer.size)
    name, index = f"tokens-{task.name}", part("index", task.name)
    count = start = 0
    with (
        atomic(job.folder / index) as path,
        TableWriter(path, INDEX_SCHEMA) as rows,
    ):

        def documents() -> Iterator[NDArray[np.integer[Any]]]:
            nonlocal count, start
            source = read_rows(Path(task.inputs["documents"]))
            for row, ids in tokenizer.encode_rows(source):
                facts = {"start": start, "tokens": len(ids), "bytes": len(row["text"].encode())}
                rows.add({**row, **facts})
                count, start = count + 1, start + len(ids)
                yield np.array(ids, dtype=token_type(code))

        write_shard(job.folder / name, documents(), code)
    return ShardResult(
        outputs=(f"{name}.bin", f"{name}.idx", index),
        num_read=count,
        kept=count,
        facts={
            "tokens": start,
            "type_code": code,
            "vocabulary": tokenizer.size,
            "tokenizer_sha256": tokenizer.sha256,
        },
    )


@functools.lru_cache(maxsize=1)
def _tokenizer(common: tuple[tuple[str, str, str], ...]) -> Tokenizer:
    ((_, path, _),) = common
    return Tokenizer.load(Path(path))


def reuse_tokens(config: TokenizeConfig, workspace: Workspace) -> None:
    """Copy the tokens of the documents in inputs["corpus"] from inputs["tokens"]."""
    remove_leftovers(workspace.folder)
    corpus, tokens = workspace.inputs["corpus"], workspace.inputs["tokens"]
    manifests = read_manifests(tokens)
    job = ShardedJob(
        folder=workspace.folder,
        work="stamm.corpus.tokenize_job:retake_shard",
        settings={"facts": {name: manifest["facts"] for name, manifest in manifests.items()}},
        code_packages=("corpus", "tokenizer"),
        shards=tuple(_task(path, tokens) for path in parts(corpus, "documents")),
    )
    run_shards(job, workspace, "reuse_tokens")


def retake_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Copy the tokens of the remaining documents of a shard, in their order.

    Raises   DataError when a document has no tokens.
    """
    name, index = f"tokens-{task.name}", part("index", task.name)
    facts = job.settings["facts"][task.name]
    shard = open_shard(Path(task.inputs["bin"]).with_suffix(""))
    remaining_ids = (
        row["document_id"] for row in read_rows(Path(task.inputs["documents"]), ["document_id"])
    )
    wanted = next(remaining_ids, None)
    count = kept = start = 0
    with atomic(job.folder / index) as path, TableWriter(path, INDEX_SCHEMA) as rows:

        def documents() -> Iterator[NDArray[Any]]:
            nonlocal wanted, count, kept, start
            for row in read_rows(Path(task.inputs["index"])):
                count += 1
                if row["document_id"] != wanted:
                    continue
                wanted = next(remaining_ids, None)
                rows.add(row | {"start": start})
                kept, start = kept + 1, start + row["tokens"]
                yield shard.tokens[row["start"] : row["start"] + row["tokens"]]

        write_shard(job.folder / name, documents(), facts["type_code"])
        if wanted is not None:
            raise DataError(
                f"document {wanted} of shard {task.name} has no tokens",
                fix="Run the tokenize step of the corpus again",
            )
    return ShardResult(
        outputs=(f"{name}.bin", f"{name}.idx", index),
        num_read=count,
        kept=kept,
        dropped={"withdrawn": count - kept} if count > kept else {},
        facts=dict(sorted((facts | {"tokens": start}).items())),
    )


def _task(documents: Path, tokens: Path) -> ShardTask:
    name = documents.stem.partition("-")[2]
    inputs = {
        "documents": documents,
        "index": tokens / part("index", name),
        "bin": tokens / f"tokens-{name}.bin",
        "idx": tokens / f"tokens-{name}.idx",
    }
    return ShardTask(name=name, inputs={role: str(path.resolve()) for role, path in inputs.items()})
