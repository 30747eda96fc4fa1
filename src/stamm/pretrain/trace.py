"""`stamm.trace`: which documents a step read, which steps, checkpoints and releases read a document, and which
documents have runs of tokens in common with a passage.

Nothing is stored for it: the answers follow from the order of the packed corpus and the configuration
(`pretrain.trace_order`). Masks and losses need the token files, which a release does not have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from stamm.base.config import assignments, override
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError, RunError, StammError
from stamm.base.schema import read_lines, read_record
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tables import parts, read_parts, read_table
from stamm.engine.checkpoint_files import checkpoint_steps
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.held_out import losses_of_documents
from stamm.evaluate.records import DocumentLoss
from stamm.models.loading import open_model
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.trace_config import TraceConfig
from stamm.pretrain.trace_order import TrainingOrder, kind_of, matching
from stamm.pretrain.trace_passage import CHANGE_LIMIT, LIMITS, PassageSearch, Places
from stamm.pretrain.trace_records import PRETRAIN, ArmTrace, Reading, Trace, TracedDocument
from stamm.runs.records import ManifestFile

RELEASE = "release.json"
_SKIPPED = (
    "checkpoints",
    "model",
    "corpus",
    "tokens",
    "filtered",
    "pack",
    "evaluate",
    "audit",
    "steps",
)
_DEEPEST = 8
_HELD_OUT = "order-held_out.parquet"


def trace(folder: str | os.PathLike[str], *changes: str, **settings: Any) -> Trace:
    """Which documents a step read, which steps read a document, or which documents overlap a passage; exact.

        stamm.trace("runs/demo/arms/xielu", step=120).arms[0].documents
        stamm.trace("runs/demo/arms/xielu", passage="@answer.txt").arms[0].documents[0].run
        stamm.trace("runs", document="https://example.org/page").arms

    folder   an arm, a run, a release; with document= any folder, whose runs and releases are listed
    changes, settings   of `TraceConfig`
    Raises   RunError for a folder without a pretrained arm; ConfigError for a step or tokens that are not there,
             and for a passage that cannot be searched for
    """
    config, root = override(TraceConfig(), assignments(changes, settings)), Path(folder)
    config.check()
    text = config.passage_text() if config.passage else ""
    branches = {name: _only_arm(Path(name)) for name in config.forgotten}
    # An arm that cannot be read must not hide the others, nor pass for one without the document.
    unknown: dict[Path, StammError] = {}
    kinds = dict(_arms_below(root, unknown))
    pretrained = [arm for arm, kind in kinds.items() if kind == PRETRAIN]
    if not (pretrained or unknown):
        raise RunError(
            f"{root} holds no pretrained arm",
            fix="Name a run, an arm of it, a release, or a folder of runs",
        )
    traced: dict[Path, ArmTrace] = {}
    places: dict[tuple[Path, tuple[int, ...]], Places] = {}
    forgot = set()
    for arm in pretrained:
        try:
            order = TrainingOrder(arm)
        except StammError as error:
            unknown[arm] = error
            continue
        try:
            passage = PassageSearch(arm, config, text, branches, places) if text else None
            traced[arm] = _traced(order, config, passage)
        except ConfigError:  # of the question, not of the arm
            raise
        except StammError as error:
            unknown[arm] = error
        if order.spans is not None:
            forgot.add(arm)  # its own order defines what it read, not the run before it
    if config.document:
        sources = _sources([arm for arm in kinds if arm not in forgot], unknown)
        traced |= _descendants(kinds, sources, traced)
    if len(unknown) == 1 and not traced:
        raise next(iter(unknown.values()))
    traced |= {
        arm: ArmTrace(arm=str(arm), release=_release_of(arm), error=str(error))
        for arm, error in unknown.items()
    }
    return Trace(arms=tuple(traced[arm] for arm in sorted(traced)))


def _traced(order: TrainingOrder, config: TraceConfig, passage: PassageSearch | None) -> ArmTrace:
    remarks: list[str] = []
    tokens = _Tokens.open(order, remarks)
    if config.step is not None:
        if config.step > order.done:
            remarks.append(
                f"step {config.step} is not trained yet: {order.done} of {order.steps} are"
            )
        first, starts = order.sequences(config.step)
        windows = [(config.step, first + n, start) for n, start in enumerate(starts.tolist())]
        within = sorted(
            {
                n
                for *_, start in windows
                for n in order.between(start, start + order.windows.length + 1)
            }
        )
        matches = [
            (n, [w for w in windows if _overlaps(order, n, w[2])])
            for n in within
            if not order.hides(int(order.starts[n]), config.step)
        ]
    elif passage is not None:
        return _traced_passage(order, config, passage, tokens, remarks)
    else:
        if config.document:
            numbers, span = order.named(config.document), None
        else:
            span = config.span()
            if span[1] > order.starts[-1]:
                raise ConfigError(
                    f"tokens={config.tokens} are not in the stream of {order.starts[-1]:,}"
                )
            numbers = list(order.between(*span))
        matches = []
        for number in numbers:
            start, stop = order.starts[number : number + 2].tolist()
            inner = (start, stop) if span is None else (max(start, span[0]), min(stop, span[1]))
            matches.append((number, order.readings(*inner)))
        if config.document:
            remarks += _why_not(order, config.document, bool(numbers))
    steps = [step for _, readings in matches for step, *_ in readings]
    shown = matches[: config.limit]
    documents = [_document(order, number, readings, tokens) for number, readings in shown]
    return _arm_trace(order, config, len(matches), steps, documents, tokens, remarks)


def _traced_passage(
    order: TrainingOrder,
    config: TraceConfig,
    passage: PassageSearch,
    tokens: _Tokens | None,
    remarks: list[str],
) -> ArmTrace:
    overlap, documents, steps = None, list[TracedDocument](), list[int]()
    if tokens is None:
        if not (config.loss or config.forgotten or config.new_tokens):
            raise RunError(
                f"{order.arm} has no token files, so that no document can be compared with the passage",
                fix="Trace the run itself; loss=true and new_tokens=N ask the model alone",
            )
        remarks.append("which documents it overlaps with is not known, for the same reason")
    else:
        overlap = passage.overlap(order)
        for numbers, run in overlap.longest:
            parts = []
            for number in numbers:
                start = int(order.starts[number]) + run.document_start
                read = order.readings(start, start + run.stop - run.start)
                parts.append(_document(order, number, read, tokens))
            readings = [reading for part in parts for reading in part.readings]
            readings.sort(key=lambda reading: reading.position)
            steps += [reading.step for reading in readings]
            documents.append(replace(parts[0], run=run, readings=tuple(readings)))
    count, covered = (overlap.count, overlap.covered) if overlap else (0, None)
    remarks += [*(LIMITS if overlap else ()), *([CHANGE_LIMIT] if config.forgotten else [])]
    arm = _arm_trace(order, config, count, steps, documents, tokens, remarks)
    return replace(arm, passage=passage.traced(covered, documents))


def _arm_trace(
    order: TrainingOrder,
    config: TraceConfig,
    count: int,
    steps: Sequence[int],
    documents: list[TracedDocument],
    tokens: _Tokens | None,
    remarks: list[str],
) -> ArmTrace:
    """The trace of an arm; `documents` with what else is asked for."""
    if config.text:
        documents = _with_text(order, documents, remarks)
    documents = _with_loss(order, documents, tokens if config.loss else None, remarks)
    if order.config.begin is not None:
        remarks.append(
            f"it began from {order.config.begin.checkpoint}, which read documents of its own"
        )
    return ArmTrace(
        arm=str(order.arm),
        steps=order.steps,
        done=order.done,
        count=count,
        first_step=min(steps, default=None),
        documents=tuple(documents),
        checkpoints=tuple(checkpoint_steps(order.arm / "checkpoints")),
        release=_release_of(order.arm),
        remarks=tuple(remarks),
    )


@dataclass(frozen=True)
class _Tokens:
    """The token files of a packed corpus, and the loss masks of the sequences of an arm: up to the checkpoint
    that a run which forgot documents resumed from, and after it."""

    split: PackedSplit
    before: SequenceSampler
    after: SequenceSampler

    @classmethod
    def open(cls, order: TrainingOrder, remarks: list[str]) -> _Tokens | None:
        """None where the files are not there, as in a release."""
        if not any(order.pack.glob("train-*.bin")):
            remarks.append("masks and losses are not known: the token files are not there")
            return None
        split = PackedSplit.open(order.pack, "train")
        after = order.sampler(split, order.resumed + 1)
        return cls(split, order.sampler(split, order.resumed), after)


def _overlaps(order: TrainingOrder, number: int, window: int) -> bool:
    start, stop = order.starts[number : number + 2].tolist()
    return bool(start <= window + order.windows.length and window < stop)


def _document(
    order: TrainingOrder,
    number: int,
    windows: Sequence[tuple[int, int, int]],
    tokens: _Tokens | None,
) -> TracedDocument:
    row = order.row(number)
    start, stop = order.starts[number : number + 2].tolist()
    return TracedDocument(
        document_id=row["document_id"],
        url=row["url"] or "",
        source=row["source"] or "",
        licence=row["licence"] or "",
        language=row["language"] or "",
        probe_id=row["probe_id"] or "",
        stage=order.stage_of(start),
        occurrence=row["occurrence"],
        forgotten=order.rule if order.forgets(start) else "",
        start=start,
        stop=stop,
        readings=tuple(_reading(order, start, stop, *window, tokens) for window in windows),
    )


def _reading(
    order: TrainingOrder,
    start: int,
    stop: int,
    step: int,
    position: int,
    window: int,
    tokens: _Tokens | None,
) -> Reading:
    first, last = max(start, window), min(stop, window + order.windows.length + 1)
    targets = range(max(first, window + 1), last)
    learned: int | None = None
    masked: tuple[int, ...] = ()
    if tokens is not None:
        sampler = tokens.after if step > order.resumed else tokens.before
        keep = sampler.batch(position, 1).keep_BT[0].tolist()
        masked = tuple(token - start for token in targets if not keep[token - window - 1])
        learned = len(targets) - len(masked)
    return Reading(
        step=step,
        position=position,
        start=first - start,
        stop=last - start,
        targets=len(targets),
        learned=learned,
        masked=masked,
        loss_nats=order.losses.get(step),
    )


def _with_text(
    order: TrainingOrder, documents: list[TracedDocument], remarks: list[str]
) -> list[TracedDocument]:
    """The documents with the texts that the corpus of the run has; a release has none."""
    corpus = order.pack.parent / "corpus"
    if not any(corpus.glob("documents-*.parquet")):
        remarks.append("texts are not known: the corpus is not there")
        return documents
    wanted = {document.document_id for document in documents}
    texts = {
        row["document_id"]: row["text"]
        for row in read_parts(corpus, "documents", ["document_id", "text"])
        if row["document_id"] in wanted
    }
    return [replace(document, text=texts.get(document.document_id)) for document in documents]


def _with_loss(
    order: TrainingOrder,
    documents: list[TracedDocument],
    tokens: _Tokens | None,
    remarks: list[str],
) -> list[TracedDocument]:
    """The documents with their loss under the trained model: as recorded, or computed with `tokens`."""
    recorded = order.arm / "evaluate" / "held_out_documents.jsonl"
    losses: dict[str, DocumentLoss] = {}
    if recorded.is_file():
        losses = {line.document_id: line for line in read_lines(DocumentLoss, recorded)}
    missing = {d.document_id: d for d in documents if d.document_id not in losses}
    if tokens is not None and missing:
        if not (order.arm / "model" / "decoder.json").is_file():
            remarks.append("losses are not known: the arm has no trained model")
        else:
            decoder = open_model(order.arm).decoder
            rows = [
                {
                    "document_id": d.document_id,
                    "language": d.language,
                    "start": d.start,
                    "stop": d.stop,
                    "bytes": 0,
                }
                for d in missing.values()
            ]
            computed = losses_of_documents(
                EvaluateConfig(), decoder, tokens.split, rows, NoProgress()
            )
            losses |= {loss.document_id: loss for loss in computed}
    return [
        replace(document, nats=loss.nats, scored=loss.tokens)
        if (loss := losses.get(document.document_id))
        else document
        for document in documents
    ]


def _why_not(order: TrainingOrder, word: str, found: bool) -> Iterator[str]:
    """Remarks on documents with this name that were not trained on: held out, or duplicates of one that was."""
    held_out = order.pack / _HELD_OUT
    if held_out.is_file() and (
        rows := matching(read_table(held_out, ["document_id", "url"]), word)
    ):
        yield f"{len(rows)} are held out: never trained on, read by the evaluation"
    corpus = order.pack.parent / "corpus"
    if not any(corpus.glob("ledger-*.parquet")):
        if not found:
            yield "the ledger is not there: a text dropped as a duplicate of one that was read is not found"
        return
    kept = set()
    for path in parts(corpus, "ledger"):
        table = read_table(path, ["document_id", "url", "duplicate_of"])
        numbers = matching(table, word)
        kept |= {
            name
            for name in table["duplicate_of"].take(pa.array(numbers, pa.int64())).to_pylist()
            if name
        }
    for name in sorted(kept)[:20]:
        yield f"the same text, or nearly, was kept as document {name}: trace document={name}, too"


def _arms_below(root: Path, unknown: dict[Path, StammError]) -> Iterator[tuple[Path, str]]:
    """Folders of trained arms at or below a folder, and their kinds; `unknown` takes those that cannot be read."""
    if not root.is_dir():
        raise RunError(f"{root} is not a folder")

    def unreadable(error: OSError) -> None:
        unknown[Path(error.filename)] = DataError(f"cannot be listed: {error.strerror}")

    start = len(root.parts)
    for name, folders, _ in os.walk(root, onerror=unreadable):
        path = Path(name)
        try:
            if kind := kind_of(path):
                yield path, kind
        except StammError as error:
            unknown[path] = error
        hidden = len(path.parts) - start >= _DEEPEST
        folders[:] = (
            []
            if hidden
            else sorted(
                below for below in folders if not below.startswith(".") and below not in _SKIPPED
            )
        )


def _only_arm(root: Path) -> Path:
    """The only pretrained arm of a run or a release."""
    unknown: dict[Path, StammError] = {}
    arms = [arm for arm, kind in _arms_below(root, unknown) if kind == PRETRAIN]
    if unknown:
        raise next(iter(unknown.values()))
    if len(arms) != 1:
        raise RunError(f"{root} holds {len(arms)} pretrained arms", fix="Name one arm of it")
    return arms[0]


def _sources(arms: Iterable[Path], unknown: dict[Path, StammError]) -> dict[Path, list[Path]]:
    """The inputs of each arm; `unknown` takes those whose manifest cannot be read."""
    sources = {}
    for arm in arms:
        try:
            inputs = read_record(ManifestFile, arm / "manifest.json").inputs
            sources[arm] = [(arm / source.path).resolve() for source in inputs.values()]
        except StammError as error:
            unknown.setdefault(arm, error)
    return sources


def _descendants(
    kinds: Mapping[Path, str],
    sources: Mapping[Path, Sequence[Path]],
    traced: Mapping[Path, ArmTrace],
) -> dict[Path, ArmTrace]:
    """Arms that were trained from one that contains the documents, at any distance."""
    containing = {arm.resolve(): arm for arm, result in traced.items() if result.contains}
    descendants: dict[Path, ArmTrace] = {}
    waiting = [arm for arm in sources if arm.resolve() not in containing]
    while heirs := [
        (arm, parent) for arm in waiting if (parent := _parent(arm, sources[arm], containing))
    ]:
        for arm, parent in heirs:
            known = traced.get(
                arm, ArmTrace(arm=str(arm), kind=kinds[arm], release=_release_of(arm))
            )
            steps = tuple(checkpoint_steps(arm / "checkpoints"))
            descendants[arm] = replace(known, started_from=str(parent), checkpoints=steps)
            containing[arm.resolve()] = arm
        waiting = [arm for arm in waiting if arm.resolve() not in containing]
    return descendants


def _parent(arm: Path, sources: Iterable[Path], containing: Mapping[Path, Path]) -> Path | None:
    """The containing arm whose model or checkpoint this one started from."""
    for path in sources:
        for parent in path.parents:
            if parent in containing and parent != arm.resolve():
                return containing[parent]
    return None


def _release_of(arm: Path) -> str:
    """The release that an arm lies in; "" for an arm of a run."""
    root = arm / ".." / ".." / ".."
    return os.path.normpath(root) if (root / RELEASE).is_file() else ""
