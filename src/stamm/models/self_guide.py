"""Weight of the dense guides of structured matrices at each step. No numpy here, for plans.

Steps count from 1. After `guided_steps` the weight is 0 and the guides are removed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stamm.models.config import DecoderConfig, SelfGuide


def guided_steps(guide: SelfGuide | None, num_steps: int) -> int:
    """Number of steps with a guide, at the start of a run."""
    return 0 if guide is None else round(guide.until_share * num_steps)


def without_guide(config: DecoderConfig) -> DecoderConfig:
    """The decoder of a run that starts after the guided part of another, or from a stored decoder."""
    return replace(config, structured=replace(config.structured, guide=None))


def guide_weight(guide: SelfGuide | None, step: int, num_steps: int) -> float:
    """a, the weight of the dense guides: 1 at the first step, 0 after the last guided one.

    t = (step - 1) / guided_steps;  cosine: a = (1 + cos(pi t)) / 2;  linear: a = 1 - t
    """
    guided = guided_steps(guide, num_steps)
    if guide is None or step > guided:
        return 0.0
    behind = (step - 1) / guided
    return 1.0 - behind if guide.law == "linear" else (1.0 + math.cos(math.pi * behind)) / 2.0


def expected_guide_uses(config: DecoderConfig, step: int, num_steps: int) -> float:
    """Mean of `guide_uses` over seeds, for plans."""
    guide = config.structured.guide
    weight = guide_weight(guide, step, num_steps)
    if guide is not None and not guide.reduce_flop:
        weight = float(weight > 0.0)
    return weight * (config.num_layers - config.structured.keep_first)
