"""Non-finite loss and loss spike detection, from the running median of the losses before.

A loss spike is a loss above the median of the last `window` by more than `deviations` times their spread
(1.4826 times the median absolute deviation, which is the standard deviation of a normal distribution).
The losses are read from metrics.jsonl, so a resumed run classifies as the uninterrupted run would.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Literal

from stamm.engine.config import RollBackAndSkip, SkipUpdate, StopOnNonfinite

LossStatus = Literal["ok", "spike", "nonfinite"]
_NORMAL = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_FEWEST = 16  # losses, before a loss can be a spike


class SpikeDetector:
    """Classifies one loss after another.

    before   the losses of the steps that were already done
    spread   least spread: losses that all begin at one value have none
    """

    def __init__(
        self,
        policy: StopOnNonfinite | RollBackAndSkip | SkipUpdate,
        before: Iterable[float],
        spread: float = 0.0,
    ) -> None:
        self._policy, self._spread = policy, spread
        self._last: deque[float] = deque(before, maxlen=policy.window)

    def classify(self, loss: float, norm: float) -> LossStatus:
        """The status of a step with this loss and this gradient norm."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return "nonfinite"
        return "spike" if loss > self.limit() else "ok"

    def update(self, loss: float) -> None:
        """Add a loss to the window."""
        self._last.append(loss)

    def limit(self) -> float:
        """The largest loss that is not a spike; infinite while the window holds too few losses."""
        if len(self._last) < min(_FEWEST, self._policy.window):
            return math.inf
        middle = statistics.median(self._last)
        spread = _NORMAL * statistics.median(abs(loss - middle) for loss in self._last)
        return middle + self._policy.deviations * max(spread, 1e-3 * abs(middle), self._spread)
