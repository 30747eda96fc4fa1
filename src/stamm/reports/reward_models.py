"""Reward models of a run: their held-out accuracy, and its sentence on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.receipts import is_present
from stamm.base.schema import read_record
from stamm.reports.formatting import fixed, percent
from stamm.reports.text import one_line
from stamm.runs.model_outputs import check_same_weights
from stamm.runs.schemas.reward_model import HeldOutShare, RewardAccuracyFile

_RESULT = Path("accuracy", "accuracy.json")
_LONGEST_NAME = 40


@dataclass(frozen=True, kw_only=True)
class TrainedReward:
    """The reward model of an arm."""

    name: str
    file: RewardAccuracyFile


def read_reward_models(
    run_folder: Path, arms: Sequence[tuple[str, str]]
) -> tuple[TrainedReward, ...]:
    """The reward models among the arms of a run.

    arms   names, and folders relative to the run folder

    Raises   DataError when a file does not follow its schema, or was measured with other weights than
             the arm's model has
    """
    found = []
    for name, place in arms:
        folder = run_folder / place
        if not is_present(folder / _RESULT):
            continue
        file = read_record(RewardAccuracyFile, folder / _RESULT)
        check_same_weights(file.model_sha256, str(folder / _RESULT), folder / "model")
        found.append(TrainedReward(name=name, file=file))
    return tuple(found)


def reward_sentence(model: TrainedReward) -> str:
    """The share of held-out pairs that a reward model orders right, and whether it exceeds chance."""
    file, name = model.file, one_line(model.name, _LONGEST_NAME)
    if file.accuracy.share is None:
        return f"The reward model {name} was not tested: no pairs were held out."
    shown = (
        ""
        if file.accuracy.low > 0.5
        else " The interval contains 50 %: it is not shown to order pairs better than chance."
        if file.accuracy.high >= 0.5
        else " It orders pairs worse than chance."
    )
    return (
        f"The reward model {name} prefers the chosen answer in {_share(file.accuracy)} of "
        f"{file.pairs:,} held-out pairs; a rule that prefers the longer answer does in "
        f"{_share(file.longer)}. In brackets 95 % Wilson intervals over pairs.{shown}"
    )


def _share(value: HeldOutShare) -> str:
    if value.share is None:
        return "none"
    return f"{percent(value.share)} ({fixed(100 * value.low, 1)} to {fixed(100 * value.high, 1)})"
