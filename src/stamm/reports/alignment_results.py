"""Results of alignment in a run folder: answers of aligned models, and prepared data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.receipts import check_present, is_present
from stamm.base.schema import read_record
from stamm.reports.text import one_line
from stamm.runs.model_outputs import check_same_weights
from stamm.runs.schemas.alignment import AlignmentFile, SampleAnswersFile
from stamm.runs.schemas.prepared_data import PreparedSummary

RESULT = Path("answers", "alignment.json")
SAMPLES = Path("sample_answers", "sample_answers.json")
_EXAMPLES, _SUMMARY = "examples.parquet", "summary.json"
_MOST_PREPARED = 20
_LONGEST_NAME = 120


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


def read_aligned(run_folder: Path, arms: tuple[tuple[str, int], ...]) -> tuple[AlignedArm, ...]:
    """The results in arms/NAME/answers/, in the order of `arms`; then those of several seeds in
    answers/NAME/; or the one in answers/ of a single arm's folder.

    arms   names and numbers

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    found: list[AlignedArm] = []
    if is_present(run_folder / RESULT):
        name = one_line(run_folder.resolve().name, _LONGEST_NAME)
        found.append(_read(run_folder, RESULT, name, 0))
        _check_weights(found[-1], run_folder)
    for name, number in arms:
        path = Path("arms", name) / RESULT
        if is_present(run_folder / path):
            found.append(_read(run_folder, path, name, number))
            _check_weights(found[-1], run_folder / "arms" / name)
    numbers, following = dict(arms), len(arms)
    check_present(run_folder / "answers", "*/alignment.json")
    for path in sorted((run_folder / "answers").glob("*/alignment.json")):
        name = one_line(path.parent.name, _LONGEST_NAME)
        number = numbers.get(name, following)
        following += number == following
        found.append(_read(run_folder, path.relative_to(run_folder), name, number))
    return tuple(found)


def _read(run_folder: Path, path: Path, name: str, number: int) -> AlignedArm:
    file = read_record(AlignmentFile, run_folder / path)
    return AlignedArm(name=name, number=number, source=path.as_posix(), file=file)


def _check_weights(aligned: AlignedArm, arm: Path) -> None:
    """Only for a result of one seed: several were made from other folders' models."""
    if len(aligned.file.seeds) == 1:
        sha256 = aligned.file.model_sha256.get(aligned.file.seeds[0])
        check_same_weights(sha256, str(arm / RESULT), arm / "model")


def read_samples(
    run_folder: Path, arms: Sequence[tuple[str, str]]
) -> tuple[tuple[str, SampleAnswersFile], ...]:
    """The answers before and after fine-tuning of the arms that have them.

    arms   names, and folders relative to the run folder

    Raises   DataError as `read_aligned`
    """
    found = []
    for name, place in arms:
        folder = run_folder / place
        if is_present(folder / SAMPLES):
            file = read_record(SampleAnswersFile, folder / SAMPLES)
            check_same_weights(file.model_sha256, str(folder / SAMPLES), folder / "model")
            found.append((name, file))
    return tuple(found)


def read_prepared(run_folder: Path) -> tuple[tuple[str, PreparedSummary], ...]:
    """Summaries of prepared data by folder ("data", "data/round1"), in the order of their names.

    Raises   DataError when one does not follow its schema
    """
    found = [*run_folder.glob(f"*/{_EXAMPLES}"), *run_folder.glob(f"*/*/{_EXAMPLES}")]
    names = sorted(path.parent.relative_to(run_folder).as_posix() for path in found)
    return tuple(
        (one_line(name, _LONGEST_NAME), read_record(PreparedSummary, run_folder / name / _SUMMARY))
        for name in names[:_MOST_PREPARED]
    )
