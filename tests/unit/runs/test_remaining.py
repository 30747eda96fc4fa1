"""The time that is left of a run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stamm.runs.job import Step
from stamm.runs.remaining import seconds_left


@dataclass(frozen=True)
class _Training:
    sequences: int


def _steps() -> list[Step]:
    short = [_step(f"short{i}", "pretrain", _Training(10)) for i in range(10)]
    whole = [_step(f"whole{i}", "pretrain", _Training(100)) for i in range(10)]
    return [*short, *whole, _step("page", "report", None)]


def _step(name: str, job: str, config: object) -> Step:
    return Step(name=name, job=job, config=config, folder=name, outputs=("x",))


def test_steps_that_are_alike_take_as_long() -> None:
    seconds = {**{f"short{i}": 2.0 for i in range(10)}, "whole0": 30.0, "whole1": 50.0}
    assert seconds_left(_steps(), seconds) == pytest.approx(8 * 40.0)  # the page counts as nothing


def test_before_a_long_step_is_finished_short_ones_count() -> None:
    assert seconds_left(_steps(), {"short0": 2.0, "short1": 4.0}) == pytest.approx(18 * 3.0)


def test_no_estimate_without_a_basis() -> None:
    assert seconds_left(_steps(), {}) is None
    assert seconds_left(_steps(), {"page": 1.0}) is None
    assert seconds_left(_steps()[:5], {"short0": 2.0}) is None
    assert seconds_left(_steps(), {step.name: 1.0 for step in _steps()}) is None
