"""Draws of the layers that use their dense guides at a step, equal on every process. No torch here."""

from __future__ import annotations

import numpy as np

from stamm.base.hashing import mix64, splitmix64
from stamm.models.config import DecoderConfig, SelfGuide
from stamm.models.self_guide import guide_weight

_UNIT = 2.0**-53  # 53 bits of a hash are a number in [0, 1)
_STREAM = np.uint64(
    0x5347_5549_4445
)  # "SGUIDE": separates these draws from others of the run's seed


def uses_guide(guide: SelfGuide | None, layer: int, step: int, num_steps: int, seed: int) -> bool:
    """Whether a layer's block uses its guides at a step, equal on every process.

    Checked  tests/unit/models/test_self_guide.py::test_draws_follow_the_weight
    """
    weight = guide_weight(guide, step, num_steps)
    if guide is None or not guide.reduce_flop or weight in (0.0, 1.0):
        return weight > 0.0
    return _uniform(seed, step, layer) < weight


def guide_uses(config: DecoderConfig, step: int, num_steps: int, seed: int) -> int:
    """Number of layers that use their guides at a step."""
    guide = config.structured.guide
    first = int(config.structured.keep_first)
    return sum(
        uses_guide(guide, layer, step, num_steps, seed) for layer in range(first, config.num_layers)
    )


def _uniform(seed: int, step: int, layer: int) -> float:
    state = np.array([seed % 2**64], dtype=np.uint64) ^ _STREAM
    for part in (step, layer):
        state = splitmix64(mix64(state) + np.uint64(part))
    return int(state[0] >> np.uint64(11)) * _UNIT
