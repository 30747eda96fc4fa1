"""Plan the training that forgets documents: what it must repeat, and from where. Nothing is trained here.

Reads    pack (a packed corpus), tokenizer, source (config.json of the arm that read the documents), and
         corpus (its ledger) where there is one; the files of deletion requests of the configuration
Writes   forget.json, documents.parquet (where the documents are in the corpus), near_duplicates.txt
         (deletion requests for documents like them), passages.jsonl (their beginnings, for the audit)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import remove_leftovers, write_text
from stamm.base.schema import read_record_if_present, write_record
from stamm.base.units import seconds_text
from stamm.corpus.deletions import Deletions, outcomes, read_deletions, request_rows, unmatched_text
from stamm.corpus.inputs import expand
from stamm.corpus.opt_out_replay import kept_duplicates
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.query import opened
from stamm.corpus.shuffle import WindowOrder
from stamm.corpus.tables import parts, write_whole
from stamm.engine.checkpoint_files import checkpoint_steps
from stamm.pretrain.forget.config import ForgetConfig, ForgetPlanConfig
from stamm.pretrain.forget.documents import (
    FORGOTTEN_SCHEMA,
    forgotten_rows,
    write_near_duplicates,
    write_passages,
)
from stamm.pretrain.forget.records import DOCUMENTS, FORGET, NEAR, PASSAGES, ForgetFile
from stamm.pretrain.forget.sequences import (
    affected_positions,
    read_spans,
    replacement_positions,
)
from stamm.pretrain.machine import machine_differences
from stamm.pretrain.records import TimingFile
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import cores
from stamm.tokenizer.tokenizer import Tokenizer

_MEMORY_GIB = 1.0


def run(config: ForgetPlanConfig, workspace: Workspace) -> None:
    """Write which documents are forgotten, and report how many steps are trained again.

    Raises   DataError when no request names a document of the corpus; RunError when the run read none of
             them, or bits would differ from those of a run without them; ConfigError when no forgotten
             document is long enough for the audit
    """
    folder, inputs, progress = workspace.folder, workspace.inputs, workspace.progress
    remove_leftovers(folder)
    files = list(expand(config.documents, "documents").values())
    deletions = Deletions(read_deletions(files))
    split = PackedSplit.open(inputs["pack"], "train")
    rows = list(forgotten_rows(split, deletions, _duplicates(workspace, deletions)))
    withdrawn = Counter(key for _, key in {(row["document_id"], row["key"]) for row in rows})
    requests = outcomes(request_rows(read_deletions(files), withdrawn, {}))
    if unmatched := unmatched_text(requests):
        progress.log(f"{unmatched}.")
    if not rows:
        raise DataError(
            "no deletion request names a document of the packed corpus",
            where=", ".join(map(str, files)),
            fix="Write URLs or identifiers as `stamm show ledger` prints them, one a line",
        )
    write_whole(folder / DOCUMENTS, FORGOTTEN_SCHEMA, rows)
    reads = _reads(config.training, split, folder)
    chosen = _start(config, inputs["source"].parent, reads)
    forgotten = {row["document_id"] for row in rows}
    for line in _lines(chosen, reads, config, len(forgotten)):
        progress.log(line)
    tokenizer = Tokenizer.load(inputs["tokenizer"])
    audited, controls = write_passages(
        split,
        PackedSplit.open(inputs["pack"], "held_out"),
        tokenizer,
        rows,
        deletions,
        folder / PASSAGES,
        count=config.passages,
        tokens=config.passage_tokens,
    )
    if config.passage_tokens and not audited:
        raise ConfigError(
            f"no forgotten document has the {config.passage_tokens} tokens that the audit reads",
            where="audit.prefix_tokens + audit.new_tokens",
            fix="Lower them, or set audit=none",
        )
    near = None
    if config.near is None:
        write_text(folder / NEAR, "# Not looked for\n")
    else:
        near = write_near_duplicates(split, tokenizer, forgotten, config.near, folder)
    if near:
        progress.log(
            f"{near} documents are like a forgotten one and stay: {folder / NEAR} lists them. Add it to"
            " documents to forget them too."
        )
    record = {
        "rule": config.training.rule,
        "start": config.start,
        "requests": requests["asked"],
        "unmatched": requests["unmatched"],
        "documents": len(forgotten),
        "occurrences": len(rows),
        "tokens": sum(row["stop"] - row["start"] for row in rows),
        "sequences": len(reads.steps),
        "read_again": reads.read_again,
        "first_step": reads.first_step,
        "checkpoint": chosen.step,
        "num_steps": reads.num_steps,
        "read_before": reads.before(chosen.step),
        "differences": list(chosen.differences),
        "seconds": chosen.seconds,
        "near_duplicates": near,
        "audited": audited,
        "controls": controls,
    }
    write_record(folder / FORGET, ForgetFile, record)


@dataclass(frozen=True, kw_only=True)
class _Reads:
    """The sequences of a run with forgotten documents.

    steps        the step that reads each of them, rising
    read_again   replacements that the run has read before
    """

    steps: NDArray[np.int64]
    num_steps: int
    read_again: int

    @property
    def first_step(self) -> int:
        return int(self.steps[0])

    def before(self, checkpoint: int) -> int:
        """Affected sequences that were read up to a checkpoint."""
        return int(np.searchsorted(self.steps, checkpoint, side="right"))


@dataclass(frozen=True, kw_only=True)
class _StartPoint:
    """Step of the checkpoint that training resumes from, and the expected time from there."""

    step: int
    differences: tuple[str, ...]
    seconds: float | None
    saved: tuple[int, ...]


def _duplicates(workspace: Workspace, deletions: Deletions) -> dict[str, dict[str, str]]:
    """Documents that were kept as the duplicate of a requested one, where the corpus has a ledger."""
    if "corpus" not in workspace.inputs:
        return {}
    with opened(workspace.folder, _MEMORY_GIB, cores()) as query:
        query.view("ledger", parts(workspace.inputs["corpus"], "ledger"), union=True)
        return kept_duplicates(query, deletions)


def _reads(training: ForgetConfig, split: PackedSplit, folder: Path) -> _Reads:
    order = WindowOrder(split.stages, training.context, training.seed)
    first, total = training.first_sequence, training.total_sequences(order.count)
    spans = read_spans(folder)
    affected = affected_positions(order, spans, first, total)
    plan = training.batches(total)
    ends = np.cumsum([plan.step(number).size for number in range(plan.num_steps)])
    steps = 1 + np.searchsorted(ends, affected - first, side="right")
    steps = steps[steps <= plan.num_steps]  # sequences behind the last whole step are not read
    if not len(steps):
        raise RunError(
            f"none of the {plan.num_steps} training steps read any of the documents",
            fix="Nothing is to be forgotten: the model never saw them",
        )
    again = 0
    if training.rule == "replace":
        others = replacement_positions(order, spans, first + total, len(steps))
        behind = order.windows(first + total, int(others[-1]) + 1 - first - total)
        starts = behind[others - first - total]
        again = int(np.count_nonzero(np.isin(starts, order.windows(first, total))))
    return _Reads(steps=steps, num_steps=plan.num_steps, read_again=again)


def _start(config: ForgetPlanConfig, source: Path, reads: _Reads) -> _StartPoint:
    """The checkpoint to resume from.

    Raises   RunError when bits would differ, unless start is approximate
    """
    saved = tuple(checkpoint_steps(source / "checkpoints"))
    step = max((number for number in saved if number < reads.first_step), default=0)
    if config.start == "beginning":
        step = 0
    elif config.start == "approximate" and not step:
        step = min(saved, default=0)
    timing = read_record_if_present(TimingFile, source / "log" / "timing.json")
    pace = timing.seconds / reads.num_steps if timing else None
    differences = machine_differences(source, config.training) if step else ()
    if differences and config.start == "exact":
        again = f", about {seconds_text(pace * reads.num_steps)}" if pace is not None else ""
        raise RunError(
            f"bits after the checkpoint of step {step} would differ from those of a run without the"
            f" documents: {'; '.join(differences)}",
            fix=f"start=beginning trains all {reads.num_steps} steps again here{again}, exactly; "
            f"start=approximate resumes from step {step}, with other bits",
        )
    num_left = reads.num_steps - step
    seconds = None if pace is None else round(pace * num_left, 1)
    return _StartPoint(step=step, differences=differences, seconds=seconds, saved=saved)


def _lines(
    chosen: _StartPoint, reads: _Reads, config: ForgetPlanConfig, documents: int
) -> list[str]:
    """Lines on what is trained again, before it begins."""
    sequences, num_left = len(reads.steps), reads.num_steps - chosen.step
    took = (
        f", about {seconds_text(chosen.seconds)} as the run took"
        if chosen.seconds is not None
        else ""
    )
    lines = [
        f"{documents} documents are in {sequences} of the training sequences, first in step"
        f" {reads.first_step} of {reads.num_steps}; rule={config.training.rule}.",
        f"Training resumes from {f'step {chosen.step}' if chosen.step else 'the beginning'}: {num_left} steps"
        f"{took}.",
    ]
    if reads.read_again:
        lines.append(
            f"{reads.read_again} of {sequences} replacements are read a second time: the corpus holds no"
            " other unread sequence. rule=drop replaces none."
        )
    if not chosen.step and config.start == "exact":
        listed = ", ".join(map(str, chosen.saved)) or "none"
        oldest = min(chosen.saved, default=0)
        lines.append(
            f"No checkpoint is from before step {reads.first_step} (there are: {listed}), so that the whole run"
            " is trained again; runs with engine.keep_every=N keep more."
            + (
                f" start=approximate resumes from step {oldest}, after {reads.before(oldest)} of the"
                f" {sequences} sequences were read: then the model is not one that never saw the documents."
                if oldest
                else ""
            )
        )
    if before := reads.before(chosen.step):
        lines.append(
            f"Approximate: {before} of {sequences} sequences were read before step {chosen.step}."
        )
    if chosen.differences:
        lines.append(f"Approximate, other bits: {'; '.join(chosen.differences)}.")
    return lines
