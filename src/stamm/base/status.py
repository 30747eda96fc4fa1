"""Training status for the progress bar: loss, throughput, MFU, learning rate, last checkpoint."""

from __future__ import annotations

import math
from collections import deque

_KEPT = 0.95  # of the smoothed loss, at each step
_WINDOW = 32  # steps over which throughput is averaged


class TrainingStatus:
    """Collects values of steps; `text` is a note for `Progress.advance`, the most important first.

    unit   what throughput counts, in the plural
    """

    def __init__(self, unit: str = "tokens") -> None:
        self._unit = unit
        self._loss = self._weight = 0.0
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._rate = 0.0
        self._saved: int | None = None

    def add(self, loss: float, items: float, seconds: float, mfu: float, rate: float) -> None:
        """Add one step.

        loss     a non-finite loss is left out of the smoothed loss
        items    how many of `unit` it trained on
        mfu      model FLOPs utilization, a fraction of the peak; 0 where it is not known
        rate     learning rate
        """
        if math.isfinite(loss):
            self._loss = _KEPT * self._loss + (1 - _KEPT) * loss
            self._weight = _KEPT * self._weight + (1 - _KEPT)
        self._recent.append((items, seconds, mfu))
        self._rate = rate

    def saved(self, step: int) -> None:
        """Record that the checkpoint of `step` is on the disk."""
        self._saved = step

    def text(self) -> str:
        """ "loss 3.214, 12,345 tokens/s, 34% MFU, learning rate 3.0e-04, saved at 1200".

        The loss is an exponential moving average with decay 0.95, corrected for its start; the
        throughput is that of the last 32 steps.
        """
        parts = [f"loss {self._loss / self._weight:.3f}"] if self._weight else []
        seconds = sum(time for _, time, _ in self._recent)
        if seconds > 0:
            parts.append(
                f"{sum(items for items, _, _ in self._recent) / seconds:,.0f} {self._unit}/s"
            )
            mfu = sum(time * used for _, time, used in self._recent) / seconds
            parts.extend([f"{mfu:.0%} MFU"] if mfu else [])
            parts.append(f"learning rate {self._rate:.1e}")
        if self._saved is not None:
            parts.append(f"saved at {self._saved}")
        return ", ".join(parts)
