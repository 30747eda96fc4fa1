"""Status line of training: loss, throughput, MFU, learning rate, last checkpoint."""

from __future__ import annotations

import math
from collections import deque

_KEPT = 0.95  # of the smoothed loss, at each step
_WINDOW = 32  # steps that throughput is averaged over


class TrainingStatus:
    """Smoothed statistics of recent steps; `text` is a note for `Progress.advance`."""

    def __init__(self) -> None:
        self._loss = self._weight = 0.0
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._rate = 0.0
        self._saved: int | None = None

    def add(self, loss: float, tokens: float, seconds: float, share: float, rate: float) -> None:
        """Add one step.

        loss     in nats; a non-finite loss is not added to the smoothed loss
        share    MFU, between 0 and 1; 0 when unknown
        rate     learning rate
        """
        if math.isfinite(loss):
            self._loss = _KEPT * self._loss + (1 - _KEPT) * loss
            self._weight = _KEPT * self._weight + (1 - _KEPT)
        self._recent.append((tokens, seconds, share))
        self._rate = rate

    def saved(self, step: int) -> None:
        """Record that a checkpoint of `step` was written."""
        self._saved = step

    def text(self) -> str:
        """ "loss 3.214, 12,345 tokens/s, 34% of peak, learning rate 3.0e-04, saved at 1200".

        The loss is an exponential moving average (0.95) with bias correction; throughput is that
        of the last 32 steps.
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
