"""The processor of this machine: its model, and the vector instructions that torch uses on it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def cpu_name() -> str:
    """Model name of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_capability() -> str | None:
    """Vector instructions in use, as torch names them ("AVX512", "AVX2", "DEFAULT").

    Edge     None where torch is not loaded: this does not load it
    """
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.backends.cpu.get_cpu_capability())
