"""Measurements of a trained arm: held-out text, minimal pairs, memorization, export."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.base.receipts import check_present, is_present
from stamm.base.schema import read_lines, read_record, read_record_if_present
from stamm.runs.model_outputs import check_same_weights
from stamm.runs.schemas.audit import GridFile, MembershipFile, SafetyFile
from stamm.runs.schemas.evaluation import (
    BlimpFile,
    ContinuationLine,
    DocumentLoss,
    HeldOutFile,
    MemorizationFile,
    TaskFile,
)
from stamm.runs.schemas.export import ParityFile, SamplesFile, SampleText
from stamm.runs.schemas.observation import ObserveFile
from stamm.runs.schemas.release import ReleasedFile

# more passages than this are never shown; an audit of a large model writes thousands
MOST_CONTINUATIONS = 20_000
_MOST_TASKS = 50
_STEP = re.compile(r"step-(\d{8})")
_AUDIT = ("memorization.json", "grid.json", "membership.json", "safety.json")
_WITH_FIGURES = ("held_out.json", "blimp.json")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything measured on one arm; None, or empty, where it was not run.

    documents   tokens and nats of each held-out document by its identifier
    parities    parity reports by export target
    released    the latest release
    observed    statistics of its layers
    tasks       evaluation tasks other than held_out and blimp
    curves      results of evaluated checkpoints, by step
    """

    held_out: HeldOutFile | None
    documents: Mapping[str, tuple[int, float]]
    blimp: BlimpFile | None
    memorization: MemorizationFile | None
    grid: GridFile | None
    membership: MembershipFile | None
    safety: SafetyFile | None
    continuations: tuple[ContinuationLine, ...]
    parities: tuple[tuple[str, ParityFile], ...]
    samples: tuple[SampleText, ...]
    tasks: tuple[TaskFile, ...] = ()
    curves: tuple[tuple[int, tuple[TaskFile, ...]], ...] = ()
    released: ReleasedFile | None = None
    observed: ObserveFile | None = None


def is_results_folder(folder: Path) -> bool:
    """Whether a folder has results of `stamm evaluate` or `stamm audit` of a Hugging Face folder."""
    own = not (folder / "config.json").exists() and not (folder / "arms").exists()
    patterns = (
        "*_items.jsonl",
        "blimp_pairs.jsonl",
        "memorization.json",
        "audit/memorization.json",
    )
    return own and any(any(folder.glob(pattern)) for pattern in patterns)


def read_results_folder(folder: Path) -> Measured:
    """The measurements in a folder of results, with an audit in it or in its audit/.

    Raises   DataError when a file does not follow its schema.
    """
    below = folder / "audit"
    return read_measured(folder, folder, below if below.is_dir() else folder)


def read_measured(
    folder: Path, evaluate: Path | None = None, audit: Path | None = None
) -> Measured:
    """The measurements in `folder`, an arm's.

    evaluate, audit   folders of results; None: those of the arm

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has.
    """
    evaluate, audit = evaluate or folder / "evaluate", audit or folder / "audit"
    documents = evaluate / "held_out_documents.jsonl"
    continuations = audit / "continuations.jsonl"
    check_present(folder / "export", "*/parity.json")
    exports = sorted((folder / "export").glob("[!.]*/parity.json"))
    found = Measured(
        held_out=read_record_if_present(HeldOutFile, evaluate / "held_out.json"),
        documents={
            one.document_id: (one.tokens, one.nats)
            for one in (read_lines(DocumentLoss, documents) if is_present(documents) else ())
        },
        blimp=read_record_if_present(BlimpFile, evaluate / "blimp.json"),
        memorization=read_record_if_present(MemorizationFile, audit / "memorization.json"),
        grid=read_record_if_present(GridFile, audit / "grid.json"),
        membership=read_record_if_present(MembershipFile, audit / "membership.json"),
        safety=read_record_if_present(SafetyFile, audit / "safety.json"),
        continuations=tuple(
            itertools.islice(read_lines(ContinuationLine, continuations), MOST_CONTINUATIONS)
        )
        if is_present(continuations)
        else (),
        parities=tuple((path.parent.name, read_record(ParityFile, path)) for path in exports),
        samples=tuple(
            sample
            for path in exports
            if is_present(file := path.with_name("samples.json"))
            for sample in read_record(SamplesFile, file).samples
        ),
        tasks=read_task_files(
            evaluate, _WITH_FIGURES if evaluate != audit else (*_WITH_FIGURES, *_AUDIT)
        ),
        curves=read_curves(folder / "curves"),
        released=read_record_if_present(ReleasedFile, folder / "released.json"),
        observed=read_record_if_present(ObserveFile, folder / "observe" / "observe.json"),
    )
    results: list[
        tuple[
            Path,
            TaskFile
            | MemorizationFile
            | GridFile
            | MembershipFile
            | SafetyFile
            | ParityFile
            | ObserveFile
            | None,
        ]
    ] = [
        (evaluate / "held_out.json", found.held_out),
        (evaluate / "blimp.json", found.blimp),
        (audit / "memorization.json", found.memorization),
        (audit / "grid.json", found.grid),
        (audit / "membership.json", found.membership),
        (audit / "safety.json", found.safety),
        (folder / "observe" / "observe.json", found.observed),
        *((evaluate / f"{one.task}.json", one) for one in found.tasks),
        *((folder / "export" / name / "parity.json", one) for name, one in found.parities),
    ]
    for path, result in results:
        if result is not None:
            check_same_weights(result.model_sha256, str(path), folder / "model")
    return found


def read_task_files(folder: Path, without: tuple[str, ...] = _WITH_FIGURES) -> tuple[TaskFile, ...]:
    """Results in `folder` (an arm's evaluate/) of tasks other than held_out and blimp.

    without   files that are left out

    Raises   DataError when a result file does not follow its schema.
    """
    check_present(folder, "*.json")
    files = [path for path in sorted(folder.glob("*.json")) if path.name not in without]
    return tuple(read_record(TaskFile, path) for path in files[:_MOST_TASKS])


def read_curves(folder: Path) -> tuple[tuple[int, tuple[TaskFile, ...]], ...]:
    """The results of every evaluated checkpoint of an arm, by step.

    folder   the arm's curves/

    Raises   DataError when a file does not follow its schema.
    """
    if not folder.is_dir():
        return ()
    steps = [(int(m.group(1)), p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name))]
    return tuple((step, read_task_files(path, ())) for step, path in sorted(steps))
