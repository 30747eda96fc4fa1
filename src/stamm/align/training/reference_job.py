"""Compute the log-probabilities of prepared answers under the reference policy, once, in shards.

No second model is in memory while training: preference objectives read these numbers. They are tied
by hash to the weights, the data and the chat format; a mismatch is refused.

Reads    start (a stored decoder), tokenizer, data (prepared examples)
Writes   log_probs-00000.parquet, .., manifests/, log_probs.parquet (a row per answer, in the order of
         the data: log_prob in nats, float64, and num_tokens; for losses that read KL also mismatched_log_prob, of
         `MismatchedAnswers`, null where there is none), held_out_log_probs.parquet (the same of the
         held-out answers, where there are any), summary.json

Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.align.data.encoded import FILES, SUMMARY, EncodedExamples
from stamm.align.records import ReferenceSummary
from stamm.align.shard_device import device_type, on_device
from stamm.align.training.answer_dataset import MismatchedAnswers, have_other_prompts
from stamm.align.training.config import ReferenceConfig
from stamm.align.training.log_probs import completion_log_probs
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers, sha256_file
from stamm.base.schema import read_record, write_record
from stamm.corpus.tables import TableWriter, read_table
from stamm.engine.distributed import select_device
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.hf_chat_format import load_chat_format, load_folder_chat
from stamm.models.loading import check_vocabulary
from stamm.models.serialization import checked_config, load_frozen_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import DECODER, WEIGHTS, weights_sha256
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

Split = Literal["train", "held_out"]
TRAIN: Split = "train"
HELD_OUT: Split = "held_out"
LOG_PROBS = {TRAIN: "log_probs.parquet", HELD_OUT: "held_out_log_probs.parquet"}
MISMATCHED = "mismatched_log_prob"
_SCHEMA = pa.schema([("log_prob", pa.float64()), ("num_tokens", pa.int32())])
_FIX = "Delete the folder and run the step that writes it again"


def run(config: ReferenceConfig, workspace: Workspace) -> None:
    """Compute the log-probability of every answer, of the held-out ones too.

    Raises   DataError when data and tokenizer have different chat formats, or the tokenizer has more
             ids than the start model
    """
    folder, start = workspace.folder, workspace.inputs["start"]
    remove_leftovers(folder)
    data = EncodedExamples.open(workspace.inputs["data"])
    tokenizer = workspace.inputs["tokenizer"]
    check_chat_format(data, tokenizer)
    check_vocabulary(checked_config(start), load_folder_chat(tokenizer).tokenizer.size, tokenizer)
    device = device_type(config.device, "reference.device")
    splits: dict[Split, EncodedExamples] = {TRAIN: data}
    held_out = EncodedExamples.open(workspace.inputs["data"], HELD_OUT)
    if len(held_out.answers) and (not config.mismatched or have_other_prompts(held_out.answers)):
        splits[HELD_OUT] = held_out
    size = config.answers_per_shard
    prepared: dict[str, str] = {
        **{
            str(split): str((workspace.inputs["data"] / FILES[split]).resolve()) for split in splits
        },
        "summary": str((workspace.inputs["data"] / SUMMARY).resolve()),
        "weights": str((start / WEIGHTS).resolve()),
        "decoder": str((start / DECODER).resolve()),
    }
    job = ShardedJob(
        folder=folder,
        work="stamm.align.training.reference_job:reference_shard",
        settings=to_plain(replace(config, device=device)),
        code_packages=("activations", "align", "losses", "models"),
        common=prepared,
        shards=tuple(
            ShardTask(
                name=f"{'' if split == TRAIN else 'held_out-'}{first // size:05d}",
                inputs={},
                extra={
                    "split": split,
                    "first": first,
                    "last": min(first + size, len(examples.answers)),
                },
            )
            for split, examples in splits.items()
            for first in range(0, len(examples.answers), size)
        ),
    )
    run_shards(job, on_device(workspace, device), "reference log-probabilities")
    sums = {split: _join(job, config, split) for split in splits}
    nats, tokens = sums[TRAIN]
    summary: dict[str, Any] = {
        "sha256": sha256_file(folder / LOG_PROBS[TRAIN]),
        "data_sha256": data.sha256,
        "weights_sha256": weights_sha256(start),
        "chat_format_sha256": data.chat_format_sha256,
        "answers": len(data.answers),
        "tokens": tokens,
        "mean_nats_per_token": nats / max(tokens, 1),
    }
    if HELD_OUT in splits:
        summary["held_out_sha256"] = sha256_file(folder / LOG_PROBS[HELD_OUT])
        summary["held_out_data_sha256"] = held_out.sha256
    write_record(folder / SUMMARY, ReferenceSummary, summary)


def _join(job: ShardedJob, config: ReferenceConfig, split: Split) -> tuple[float, int]:
    """Write the file of a split from its shards; the sum of nats, and of tokens."""
    schema = _schema(config)
    with (
        atomic(job.folder / LOG_PROBS[split]) as temporary,
        TableWriter(temporary, schema) as table,
    ):
        nats, tokens = 0.0, 0
        for shard in job.shards:
            if shard.extra["split"] != split:
                continue
            for row in read_table(job.folder / _part(shard.name), list(schema.names)).to_pylist():
                table.add(row)
                nats -= row["log_prob"]
                tokens += row["num_tokens"]
    return nats, tokens


def reference_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Compute the log-probabilities of one range of answers."""
    config = from_plain(ReferenceConfig, job.settings)
    decoder, data, mismatched = _loaded(config, common_files(job), task.extra["split"])
    shard = slice(task.extra["first"], task.extra["last"])
    answers = data.answers[shard]
    own_log_probs = completion_log_probs(decoder, answers, config.batch_tokens)
    rows: list[dict[str, float | None]] = [
        {"log_prob": log_prob, "num_tokens": sum(answer.supervised[1:])}
        for answer, log_prob in zip(answers, own_log_probs.tolist(), strict=True)
    ]
    if mismatched is not None:
        others = mismatched[shard]
        known = [other for other in others if other is not None]
        log_probs = iter(completion_log_probs(decoder, known, config.batch_tokens).tolist())
        for row, other in zip(rows, others, strict=True):
            row[MISMATCHED] = None if other is None else next(log_probs)
    with (
        atomic(job.folder / _part(task.name)) as temporary,
        TableWriter(temporary, _schema(config)) as table,
    ):
        for row in rows:
            table.add(row)
    return ShardResult(outputs=(_part(task.name),), num_read=len(answers), kept=len(answers))


def read_reference(
    folder: Path, data: EncodedExamples, start: Path, split: Split = TRAIN
) -> NDArray[np.float64]:
    """The log-probability of each answer of `data` under the model that is stored in `start`, in nats.

    Raises   DataError with both hashes when they were computed from other data, another chat format
             or another model, and when a file is missing or damaged
    """
    summary, path = read_record(ReferenceSummary, folder / SUMMARY, _FIX), folder / LOG_PROBS[split]
    of_file, of_data = summary.sha256, summary.data_sha256
    if split == HELD_OUT:
        of_file, of_data = summary.held_out_sha256, summary.held_out_data_sha256
    if not path.is_file():
        raise DataError(f"{path} does not exist", fix=_FIX)
    for what, recorded, actual in (
        (f"file {path.name}", of_file, sha256_file(path)),
        ("data", of_data, data.sha256),
        ("chat format", summary.chat_format_sha256, data.chat_format_sha256),
        ("model", summary.weights_sha256, weights_sha256(start)),
    ):
        if recorded != actual:
            raise DataError(
                f"the reference log-probabilities in {folder} belong to another {what}: SHA-256 "
                f"{recorded[:64]} there, {actual} here",
                fix="Compute them again from this model and data",
            )
    log_probs = read_table(path, ["log_prob"])["log_prob"].to_numpy()
    if len(log_probs) != len(data.answers) or not np.isfinite(log_probs).all():
        raise DataError(f"{path} does not have a number for each answer", fix=_FIX)
    return np.asarray(log_probs, dtype=np.float64)


def read_mismatched(folder: Path, split: Split = TRAIN) -> NDArray[np.float64]:
    """Log-probabilities of `MismatchedAnswers`; NaN where there is none.

    The files must have been checked by `read_reference`.
    """
    column = read_table(folder / LOG_PROBS[split], [MISMATCHED])[MISMATCHED]
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def check_chat_format(data: EncodedExamples, tokenizer: Path) -> None:
    """Check that prepared data was encoded with the chat format of `tokenizer`.

    Raises   DataError with both hashes
    """
    sha256 = load_chat_format(tokenizer).sha256
    if data.chat_format_sha256 != sha256:
        raise DataError(
            f"the prepared data was encoded with another chat format: SHA-256 "
            f"{data.chat_format_sha256[:64]} there, {sha256} here ({tokenizer})",
            fix="Prepare the data again with this tokenizer",
        )


def _schema(config: ReferenceConfig) -> pa.Schema:
    more = [pa.field(MISMATCHED, pa.float64())] if config.mismatched else []
    return pa.schema([*_SCHEMA, *more])


def _part(name: str) -> str:
    return f"log_probs-{name}.parquet"


@functools.lru_cache(maxsize=1)
def _loaded(
    config: ReferenceConfig, files: tuple[tuple[str, str, str], ...], split: Split
) -> tuple[Decoder, EncodedExamples, MismatchedAnswers | None]:
    """The model and the data: role, path and hash of each file, as `common_files` gives them."""
    set_determinism(1)
    paths = {role: Path(path) for role, path, _ in files}
    data = EncodedExamples.open(paths[split].parent, split)
    what = "answers" if split == TRAIN else "held-out answers"
    context = data.summary.context
    others = MismatchedAnswers(data.answers, context, what) if config.mismatched else None
    decoder = load_frozen_decoder(paths["weights"].parent)
    return decoder.to(select_device(config.device)), data, others
