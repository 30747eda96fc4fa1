"""Tokens to equal loss: how many tokens one arm needs for the loss that another one reaches.

Held-out loss is measured at the end only, so training losses are compared: of arms of one seed, which
read the same text in the same order, before either learning rate decays. In the second half of those steps
each loss is fitted by a + b ln(step); noise of the text is in both and leaves the difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

_FEWEST = 8


def log_token_ratio(
    arm: Mapping[int, float], baseline: Mapping[int, float], stable: int
) -> float | None:
    """ln(tokens that the arm needs / tokens that the baseline needs) for an equal loss; below 0: fewer.

    arm, baseline   training loss by step
    stable          the last step before either learning rate decays; by half of it both are at their peak

    The better one's curve is followed back to the loss that the other one has at `stable`, so that
    nothing is extrapolated.

    Edge     None with fewer than 8 common steps, where a fitted loss does not fall, and where the
             better one reached that loss before the fitted steps (with fewer than half of the tokens)
    Checked  tests/unit/reports/test_tokens_to_loss.py (curves of known ratio)
    """
    steps = sorted(
        step
        for step in arm.keys() & baseline.keys()
        if stable / 2 < step <= stable and math.isfinite(arm[step] + baseline[step])
    )
    if len(steps) < _FEWEST:
        return None
    places = [math.log(step) for step in steps]
    one, other = (_line(places, [curve[step] for step in steps]) for curve in (arm, baseline))
    end = math.log(stable)
    ends = [level + slope * end for level, slope in (one, other)]
    (level, slope), wanted, sign = (one, ends[1], 1) if ends[0] <= ends[1] else (other, ends[0], -1)
    if slope >= 0:
        return None
    earlier = (wanted - level) / slope - end
    return sign * earlier if earlier >= -math.log(2) else None


def _line(places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    slope, level = statistics.linear_regression(places, losses)
    return level, slope
