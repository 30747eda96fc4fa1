"""Clocks: how long calls take on a device, with everything else about them kept equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

# Bytes overwritten before each call on a GPU: many times its cache, and enough work for the host
# to queue the whole call meanwhile, so that events time the device and not Python.
_FLUSH = 2**30

Timed = tuple[Callable[[], object], Callable[[], object]]


class Clock(Protocol):
    """Times calls that are made one after the other."""

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call; the first function of a pair is run before it, untimed."""


class CpuClock:
    """Wall time. Caches are as the call before left them; results are freed outside the time."""

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call."""
        taken = []
        for prepare, call in calls:
            prepare()
            began = time.perf_counter()
            kept = call()
            taken.append(time.perf_counter() - began)
            del kept
        return taken


class GpuClock:
    """Time between two events on the device's stream, its cache overwritten before each call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flushed = torch.empty(_FLUSH, dtype=torch.uint8, device=device)

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call on the device."""
        events = []
        for prepare, call in calls:
            prepare()
            self._flushed.zero_()
            began, ended = _event(), _event()
            began.record()
            call()
            ended.record()
            events.append((began, ended))
        torch.cuda.synchronize(self._device)
        return [began.elapsed_time(ended) / 1000 for began, ended in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: "cpu" or "cuda"."""
    return CpuClock() if device.type == "cpu" else GpuClock(device)
