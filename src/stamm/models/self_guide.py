"""How much the dense guides of structured matrices still say at a step. No torch here.

Steps count from 1. After `guided_steps` of them nothing is left to say and the guides go.
"""

from __future__ import annotations

import math

import numpy as np

from stamm.base.mixing import mix64, splitmix64
from stamm.models.config import DecoderConfig, SelfGuide

_UNIT = 2.0**-53  # 53 bits of a hash are a number from 0 to just below 1
_STREAM = np.uint64(0x5347_5549_4445)  # "SGUIDE": no other draw from the run's seed is this one


def guided_steps(guide: SelfGuide | None, num_steps: int) -> int:
    """How many of a run's steps have a guide, the first ones."""
    return 0 if guide is None else round(guide.until_share * num_steps)


def guide_weight(guide: SelfGuide | None, step: int, num_steps: int) -> float:
    """a, the weight of the dense guides: 1 at the first step, 0 after the last guided one.

    t = (step - 1) / guided_steps;  cosine: a = (1 + cos(pi t)) / 2;  linear: a = 1 - t
    """
    guided = guided_steps(guide, num_steps)
    if guide is None or step > guided:
        return 0.0
    behind = (step - 1) / guided
    return 1.0 - behind if guide.law == "linear" else (1.0 + math.cos(math.pi * behind)) / 2.0


def uses_guide(guide: SelfGuide | None, layer: int, step: int, num_steps: int, seed: int) -> bool:
    """Whether a layer's block multiplies by its guides at a step; every process finds the same.

    Checked  tests/unit/models/test_self_guide.py::test_draws_follow_the_weight
    """
    weight = guide_weight(guide, step, num_steps)
    if guide is None or not guide.reduce_flop or weight in (0.0, 1.0):
        return weight > 0.0
    return _uniform(seed, step, layer) < weight


def guide_uses(config: DecoderConfig, step: int, num_steps: int, seed: int) -> int:
    """In how many layers guides are multiplied at a step."""
    guide = config.structured.guide
    first = int(config.structured.keep_first)
    return sum(
        uses_guide(guide, layer, step, num_steps, seed) for layer in range(first, config.num_layers)
    )


def expected_guide_uses(config: DecoderConfig, step: int, num_steps: int) -> float:
    """The mean of `guide_uses` over seeds: for a plan, before anything is drawn."""
    guide = config.structured.guide
    weight = guide_weight(guide, step, num_steps)
    if guide is not None and not guide.reduce_flop:
        weight = float(weight > 0.0)
    return weight * (config.num_layers - config.structured.keep_first)


def _uniform(seed: int, step: int, layer: int) -> float:
    state = np.array([seed % 2**64], dtype=np.uint64) ^ _STREAM
    for part in (step, layer):
        state = splitmix64(mix64(state) + np.uint64(part))
    return int(state[0] >> np.uint64(11)) * _UNIT
