"""Results of alignment as readers of a run want them, checked against the weights of the models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stamm.align.records import (
    AlignmentFile,
    PreparedSummary,
    RewardAccuracyFile,
    SampleAnswersFile,
)
from stamm.audit.results import read_memorization
from stamm.base.receipts import check_present, is_present
from stamm.base.schema import read_record, read_record_if_present
from stamm.evaluate.records import MemorizationFile
from stamm.pages.text import one_line
from stamm.pretrain.results import ArmTraining, read_training
from stamm.runs.model_outputs import check_same_weights, read_result_if_present
from stamm.runs.run_view import ArmView, RunView

_RESULT = Path("answers", "alignment.json")
_SAMPLES = Path("sample_answers", "sample_answers.json")
_ACCURACY = Path("accuracy", "accuracy.json")
_START_AUDIT = Path("start_audit", "memorization.json")
_EXAMPLES, _SUMMARY = "examples.parquet", "summary.json"
_MOST_PREPARED = 20
_LONGEST_NAME = 120
_Made = TypeVar("_Made", SampleAnswersFile, RewardAccuracyFile)


@dataclass(frozen=True, kw_only=True)
class AlignedArm:
    """The answers of one arm.

    number   gives its colour: that of the arm of the same name, others follow
    source   the file, relative to the run folder
    """

    name: str
    number: int
    source: str
    file: AlignmentFile


@dataclass(frozen=True, kw_only=True)
class AlignmentResults:
    """Results of a run that fine-tunes or aligns a model; () where a step was not run.

    trained         every arm
    aligned         answers compared with those of the start model
    prepared        summaries of prepared data by folder ("data", "data/round1")
    samples         answers before and after fine-tuning, by arm
    reward_models   held-out accuracy of the arms that are reward models
    memorized       audits of the start model and of an arm, by arm
    """

    trained: tuple[tuple[ArmView, ArmTraining], ...]
    aligned: tuple[AlignedArm, ...]
    prepared: tuple[tuple[str, PreparedSummary], ...]
    samples: tuple[tuple[str, SampleAnswersFile], ...]
    reward_models: tuple[tuple[str, RewardAccuracyFile], ...]
    memorized: tuple[tuple[str, MemorizationFile, MemorizationFile], ...]


def read_alignment(run: RunView) -> AlignmentResults:
    """The results in a run folder.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    return AlignmentResults(
        trained=tuple((arm, read_training(arm.folder)) for arm in run.arms),
        aligned=tuple(_aligned(run)),
        prepared=tuple(_prepared(run.root)),
        samples=tuple(_by_arm(run, SampleAnswersFile, _SAMPLES)),
        reward_models=tuple(_by_arm(run, RewardAccuracyFile, _ACCURACY)),
        memorized=tuple(_memorized(run)),
    )


def _by_arm(run: RunView, schema: type[_Made], name: Path) -> Iterator[tuple[str, _Made]]:
    """Yield the name of each arm that has the file `name`, and the file's record."""
    for arm in run.arms:
        if file := read_result_if_present(schema, arm.folder / name, arm.folder / "model"):
            yield arm.name, file


def _aligned(run: RunView) -> Iterator[AlignedArm]:
    """Answers of the run's own folder, then of arms/NAME/, then of several seeds in answers/NAME/."""
    arms = [(arm.name, arm.number, arm.place) for arm in run.arms if arm.place]
    whole = (one_line(run.root.resolve().name, _LONGEST_NAME), 0, "")
    for name, number, folder in (whole, *arms):
        path = Path(folder) / _RESULT
        if is_present(run.root / path):
            aligned = _read(run.root, path, name, number)
            # Results of several seeds were made from models in other folders.
            if len(seeds := aligned.file.seeds) == 1:
                sha256 = aligned.file.model_sha256.get(seeds[0])
                check_same_weights(sha256, str(run.root / path), run.root / folder / "model")
            yield aligned
    numbers, following = {name: number for name, number, _ in arms}, len(arms)
    check_present(run.root / "answers", "*/alignment.json")
    for file in sorted((run.root / "answers").glob("*/alignment.json")):
        name = one_line(file.parent.name, _LONGEST_NAME)
        number = numbers.get(name, following)
        following += number == following
        yield _read(run.root, file.relative_to(run.root), name, number)


def _read(root: Path, path: Path, name: str, number: int) -> AlignedArm:
    file = read_record(AlignmentFile, root / path)
    return AlignedArm(name=name, number=number, source=path.as_posix(), file=file)


def _prepared(root: Path) -> Iterator[tuple[str, PreparedSummary]]:
    examples = [*root.glob(f"*/{_EXAMPLES}"), *root.glob(f"*/*/{_EXAMPLES}")]
    names = sorted(path.parent.relative_to(root).as_posix() for path in examples)
    for name in names[:_MOST_PREPARED]:
        summary = read_record(PreparedSummary, root / name / _SUMMARY)
        yield one_line(name, _LONGEST_NAME), summary


def _memorized(run: RunView) -> Iterator[tuple[str, MemorizationFile, MemorizationFile]]:
    start = read_record_if_present(MemorizationFile, run.root / _START_AUDIT)
    if start is not None:
        audits = ((arm.name, read_memorization(arm)) for arm in run.arms)
        yield from ((name, start, audit) for name, audit in audits if audit)
