"""Choose the settings of each objective by the mean reward of its answers to validation prompts.

Reads    NAME.0, NAME.1, .. (scored completions of each candidate, in the order of the settings)
Writes   chosen.json

Checked  tests/unit/align/test_choose_job.py
"""

from __future__ import annotations

import math
from pathlib import Path

from stamm.align.results.choose_config import ChooseConfig
from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.base.schema import write_record
from stamm.runs.job import Workspace
from stamm.runs.schemas.chosen import ChosenFile

CHOSEN = "chosen.json"


def run(config: ChooseConfig, workspace: Workspace) -> None:
    """Write the best settings of every objective, and what each candidate reached.

    Raises   DataError for a file without rewards
    """
    arms = {}
    for arm in config.arms:
        means = [
            mean_reward(workspace.inputs[f"{arm.name}.{number}"])
            for number in range(len(arm.settings))
        ]
        candidates = [
            {"settings": list(settings), "mean_reward": mean}
            for settings, mean in zip(arm.settings, means, strict=True)
        ]
        best = arm.settings[means.index(max(means))]  # the first of equals
        arms[arm.name] = {"settings": list(best), "candidates": candidates}
        shown = ", ".join(f"{mean:.3f}" for mean in means)
        workspace.progress.log(f"{arm.name}: mean rewards {shown}.")
    write_record(workspace.folder / CHOSEN, ChosenFile, {"arms": arms})


def mean_reward(path: Path) -> float:
    """Mean of the column "reward" of a file.

    Raises   DataError when it has no row with a finite number
    """
    with path.open(encoding="utf-8") as file:
        rewards = [parse_json(line).get("reward") for line in file]
    numbers = [float(each) for each in rewards if isinstance(each, int | float)]
    if not numbers or len(numbers) != len(rewards) or not all(map(math.isfinite, numbers)):
        raise DataError(f"{path} has rows without a reward", fix="Run the score step again")
    return math.fsum(numbers) / len(numbers)
