"""Jobs that copy the tokens of the remaining documents after an opt-out replay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers
from stamm.base.receipts import check_file
from stamm.corpus.shards import open_shard, write_shard
from stamm.corpus.tables import TableWriter, part, parts, read_rows
from stamm.corpus.tokenize_job import INDEX_SCHEMA
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.corpus.tokenizer.tokenizer import FILE
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, read_manifests


def reuse_tokenizer(config: TokenizeConfig, workspace: Workspace) -> None:
    """Copy the vocabulary of inputs["tokenizer"]: the copied tokens need the same one."""
    remove_leftovers(workspace.folder)
    source = workspace.inputs["tokenizer"] / FILE
    check_file(source)
    with atomic(workspace.folder / FILE) as path:
        shutil.copyfile(source, path)


def retake(config: TokenizeConfig, workspace: Workspace) -> None:
    """Copy the tokens of the documents in inputs["corpus"] from inputs["tokens"]."""
    remove_leftovers(workspace.folder)
    corpus, tokens = workspace.inputs["corpus"], workspace.inputs["tokens"]
    made = read_manifests(tokens)
    job = ShardedJob(
        folder=workspace.folder,
        work="stamm.corpus.reuse_tokens:retake_shard",
        settings={"facts": {name: manifest["facts"] for name, manifest in made.items()}},
        code_packages=("corpus",),
        shards=tuple(_task(path, tokens) for path in parts(corpus, "documents")),
    )
    run_shards(job, workspace, "retake")


def retake_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Copy the tokens of the remaining documents of a shard, in their order.

    Raises   DataError when a document has no tokens.
    """
    name, index = f"tokens-{task.name}", part("index", task.name)
    facts = job.settings["facts"][task.name]
    shard = open_shard(Path(task.inputs["bin"]).with_suffix(""))
    left = (
        row["document_id"] for row in read_rows(Path(task.inputs["documents"]), ["document_id"])
    )
    wanted = next(left, None)
    count = kept = start = 0
    with atomic(job.folder / index) as path, TableWriter(path, INDEX_SCHEMA) as rows:

        def documents() -> Iterator[NDArray[Any]]:
            nonlocal wanted, count, kept, start
            for row in read_rows(Path(task.inputs["index"])):
                count += 1
                if row["document_id"] != wanted:
                    continue
                wanted = next(left, None)
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
