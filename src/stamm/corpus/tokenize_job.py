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
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.files import atomic, remove_leftovers
from stamm.corpus.shards import token_type, type_code, write_shard
from stamm.corpus.tables import TableWriter, part, parts, read_rows
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.corpus.tokenizer.tokenizer import FILE, Tokenizer
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

INDEX_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("language", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("url", pa.string()),
        ("split", pa.string()),
        ("probe_id", pa.string()),
        ("repeat", pa.int64()),
        ("start", pa.int64()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""One row per document: its first token in the shard, <s>, and how many there are with </s>."""

_COPIED = tuple(INDEX_SCHEMA.names[:8])


def tokenize(config: TokenizeConfig, workspace: Workspace) -> None:
    """Encode every shard of inputs["corpus"] with inputs["tokenizer"]."""
    remove_leftovers(workspace.folder)
    job = ShardedJob(
        folder=workspace.folder,
        work="stamm.corpus.tokenize_job:tokenize_shard",
        settings={},
        code_packages=("corpus",),
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
                rows.add({key: row[key] for key in _COPIED} | facts)
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
