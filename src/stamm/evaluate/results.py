"""Results of evaluation tasks as readers of a run want them, checked against the weights of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stamm.base.receipts import check_present, is_present
from stamm.base.schema import read_lines
from stamm.evaluate.records import BlimpFile, DocumentLoss, HeldOutFile, TaskFile
from stamm.runs.model_outputs import read_result, read_result_if_present
from stamm.runs.run_view import ArmView, RunView

_MOST_TASKS = 50
_STEP = re.compile(r"step-(\d{8})")
_WITH_FIGURES = ("held_out.json", "blimp.json")
_AUDIT = ("memorization.json", "grid.json", "membership.json", "safety.json")


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Evaluation results of one arm; None, or empty, where a task was not run.

    documents   tokens and nats of each held-out document by its identifier
    tasks       evaluation tasks other than held_out and blimp
    curves      results of evaluated checkpoints, by step
    """

    held_out: HeldOutFile | None = None
    documents: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    blimp: BlimpFile | None = None
    tasks: tuple[TaskFile, ...] = ()
    curves: tuple[tuple[int, tuple[TaskFile, ...]], ...] = ()


EvaluatedArms = Sequence[tuple[ArmView, Evaluated]]
"""Arms of a run with their results."""


def read_evaluated_arms(run: RunView) -> EvaluatedArms:
    """The arms of a run with their results.

    Raises   DataError as `read_evaluated`
    """
    return [(arm, read_evaluated(arm)) for arm in run.arms]


def read_evaluated(arm: ArmView) -> Evaluated:
    """The results of an arm.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    folder = arm.evaluate
    documents = folder / "held_out_documents.jsonl"
    model = arm.folder / "model"
    # The audit of a Hugging Face folder may lie beside them.
    others = _AUDIT if folder == arm.audit else ()
    return Evaluated(
        held_out=read_held_out(arm.folder, folder),
        documents={
            line.document_id: (line.tokens, line.nats)
            for line in (read_lines(DocumentLoss, documents) if is_present(documents) else ())
        },
        blimp=read_result_if_present(BlimpFile, folder / "blimp.json", model),
        tasks=read_task_files(folder, (*_WITH_FIGURES, *others), model),
        curves=read_curves(arm.folder / "curves"),
    )


def read_held_out(arm: Path, evaluate: Path | None = None) -> HeldOutFile | None:
    """The held-out loss of an arm; None where it was not evaluated.

    arm        its folder
    evaluate   folder of the results; None: that of the arm

    Raises     DataError as `read_evaluated`
    """
    path = (evaluate or arm / "evaluate") / "held_out.json"
    return read_result_if_present(HeldOutFile, path, arm / "model")


def read_task_files(
    folder: Path, without: tuple[str, ...] = _WITH_FIGURES, model: Path | None = None
) -> tuple[TaskFile, ...]:
    """Results in `folder` (an arm's evaluate/) of tasks other than held_out and blimp.

    without   files that are left out
    model     as of `read_result`

    Raises    DataError as `read_result`
    """
    check_present(folder, "*.json")
    files = [path for path in sorted(folder.glob("*.json")) if path.name not in without]
    return tuple(read_result(TaskFile, path, model) for path in files[:_MOST_TASKS])


def read_curves(folder: Path) -> tuple[tuple[int, tuple[TaskFile, ...]], ...]:
    """The results of every evaluated checkpoint of an arm, by step.

    folder   the arm's curves/

    Raises   DataError when a file does not follow its schema.
    """
    if not folder.is_dir():
        return ()
    steps = [(int(m.group(1)), p) for p in folder.iterdir() if (m := _STEP.fullmatch(p.name))]
    return tuple((step, read_task_files(path, ())) for step, path in sorted(steps))
