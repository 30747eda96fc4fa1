"""What a run in training says of itself beside the bar: loss, speed, learning rate, checkpoint."""

from __future__ import annotations

import math
from collections import deque

_KEPT = 0.95  # of the smoothed loss, at each step
_WINDOW = 32  # steps whose tokens per second are told together


class TrainingStatus:
    """Gathers facts of steps; `text` is a note for `Progress.advance`, what matters most first."""

    def __init__(self) -> None:
        self._loss = self._weight = 0.0
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._rate = 0.0
        self._saved: int | None = None

    def add(self, loss: float, tokens: float, seconds: float, share: float, rate: float) -> None:
        """Facts of one step.

        loss     in nats; one that is no number is left out of the smoothed loss
        share    of the peak that was used; 0 where it is not known
        rate     learning rate
        """
        if math.isfinite(loss):
            self._loss = _KEPT * self._loss + (1 - _KEPT) * loss
            self._weight = _KEPT * self._weight + (1 - _KEPT)
        self._recent.append((tokens, seconds, share))
        self._rate = rate

    def saved(self, step: int) -> None:
        """A checkpoint of `step` is on the disk."""
        self._saved = step

    def text(self) -> str:
        """ "loss 3.214, 12,345 tokens/s, 34% of peak, learning rate 3.0e-04, saved at 1200".

        The loss is an average that forgets 5 % at each step, divided by the weight of what it has
        seen; the speed is that of the last 32 steps.
        """
        parts = [f"loss {self._loss / self._weight:.3f}"] if self._weight else []
        seconds = sum(time for _, time, _ in self._recent)
        if seconds > 0:
            parts.append(f"{sum(tokens for tokens, _, _ in self._recent) / seconds:,.0f} tokens/s")
            share = sum(time * used for _, time, used in self._recent) / seconds
            parts.extend([f"{share:.0%} of peak"] if share else [])
            parts.append(f"learning rate {self._rate:.1e}")
        if self._saved is not None:
            parts.append(f"saved at {self._saved}")
        return ", ".join(parts)
