"""Remaining time of a run of many steps, estimated from finished steps of the same kind."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stamm.runs.job import Step

FEWEST_STEPS = 20  # of a run whose end is estimated


def seconds_left(steps: Sequence[Step], seconds: Mapping[str, float]) -> float | None:
    """Estimated seconds of the steps that are not finished; a plan that may stop early counts in full.

    seconds   of each finished step, by its name
    Edge      steps are alike when they have the same kind of job and the same number of sequences;
              where none is finished, those of the same job count, and other kinds count as nothing.
              None for a short run, and while a kind that most remaining steps have is unknown
    Checked   tests/unit/runs/test_remaining.py
    """
    alike: dict[Any, list[float]] = defaultdict(list)
    for step in steps:
        if step.name in seconds:
            alike[_kind(step)].append(seconds[step.name])
            alike[step.job].append(seconds[step.name])
    waiting = [step for step in steps if step.name not in seconds]
    known = [
        seconds_alike
        for step in waiting
        if (seconds_alike := alike.get(_kind(step)) or alike.get(step.job))
    ]
    if len(steps) < FEWEST_STEPS or not waiting or 2 * len(known) < len(waiting):
        return None
    return math.fsum(math.fsum(times) / len(times) for times in known)


def _kind(step: Step) -> tuple[str, Any]:
    return step.job, getattr(step.config, "sequences", None)
