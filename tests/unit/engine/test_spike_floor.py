"""Losses that begin at one value, as log 2 of a reward model, have no spread: a floor prevents false spikes."""

from __future__ import annotations

import math

from stamm.align.training.objectives import AnswerObjective
from stamm.engine.config import StopOnNonfinite
from stamm.engine.spike_detection import SpikeDetector


def test_losses_near_log_2_are_no_spikes() -> None:
    before = [math.log(2) + 1e-5 * (-1) ** step for step in range(40)]
    bare = SpikeDetector(StopOnNonfinite(), before)
    floor = SpikeDetector(StopOnNonfinite(), before, AnswerObjective.least_spread)
    assert bare.classify(0.75, 1.0) == "spike"
    assert floor.classify(0.75, 1.0) == "ok"
    assert floor.classify(2.0, 1.0) == "spike"
