"""Whether a step's loss is one to learn from, judged by the losses before it.

A spike is a loss above the median of the last `window` by more than `deviations` times their spread
(1.4826 times the median distance from that median, which is a standard deviation where losses are
normal). The losses are read from metrics.jsonl, so a run that goes on judges as it would have.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Literal

from stamm.engine.config import GoOn, RollBack, Stop

Verdict = Literal["good", "spike", "no number"]
_NORMAL = 1.4826  # of a normal distribution: standard deviation over median distance
_FEWEST = 16  # losses, before anything is called a spike


class Guard:
    """Judges one loss after another.

    before   the losses of the steps that were done already
    """

    def __init__(self, policy: Stop | RollBack | GoOn, before: Iterable[float]) -> None:
        self._policy = policy
        self._last: deque[float] = deque(before, maxlen=policy.window)

    def judge(self, loss: float, norm: float) -> Verdict:
        """What to think of a step with this loss and this gradient norm."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return "no number"
        limit = self.limit()
        return "spike" if loss > limit else "good"

    def take(self, loss: float) -> None:
        """Count a loss among those that later ones are judged by."""
        self._last.append(loss)

    def limit(self) -> float:
        """The largest loss that is no spike; infinite while there are too few to tell."""
        if len(self._last) < min(_FEWEST, self._policy.window):
            return math.inf
        middle = statistics.median(self._last)
        spread = _NORMAL * statistics.median(abs(loss - middle) for loss in self._last)
        return middle + self._policy.deviations * max(spread, 1e-3 * abs(middle))
