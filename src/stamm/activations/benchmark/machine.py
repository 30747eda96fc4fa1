"""The machine that is measured on: its memory, its kernels, and what else it is busy with."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from stamm.activations.fused import build, cpu, gpu
from stamm.activations.fused.operation import SMALLEST
from stamm.base import processor

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns of /proc/stat: idle, waiting for a disk
_COUNTED = 8  # columns that add up to all time; guests, after them, are in "user" already


def memory_bytes(device: torch.device) -> int:
    """Memory of the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return processor.memory_bytes()


def kernels_text(elements: int, dtype: torch.dtype, device: torch.device) -> str:
    """Which kernels compute activations of tensors like this: "fused", or "eager" and why."""
    if device.type == "cuda" and elements < SMALLEST:
        return f"eager: below {SMALLEST:,} elements"
    probe = torch.empty(1, dtype=dtype, device=device)
    if gpu.is_supported(probe) if probe.is_cuda else cpu.is_supported(probe):
        caveat = gpu.caveat() if probe.is_cuda else None
        return f"fused ({caveat})" if caveat else "fused"
    why = gpu.unavailable_reason() if probe.is_cuda else build.unavailable_reason()
    return f"eager: {why or f'no fused kernels for {dtype}'.replace('torch.', '')}"


class Load:
    """Number of cores that other processes keep busy since it was created (Linux only)."""

    def __init__(self) -> None:
        self._began = self._now()

    def others(self) -> float | None:
        """Cores busy with other processes since then, on average; None where it is unknown."""
        now = self._now()
        if self._began is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._began, now, strict=True))
        return max(0.0, (busy - own) / wall)

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds: of the clock, busy on all cores together, of them ours."""
        if not _STAT.is_file():
            return None
        columns = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
        ticks = sum(columns[:_COUNTED]) - sum(columns[place] for place in _IDLE)
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()
