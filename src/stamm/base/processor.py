"""The processor of this machine, its model and vector instructions, and the machine's memory.

Also the environment in which libraries choose the same code on every x86-64 processor with AVX2:

ATEN_CPU_CAPABILITY     torch's own vector code
MKL_CBWR                MKL's linear algebra, as Intel documents it for processors of all vendors
MKL_DYNAMIC             the number of threads that MKL is given
MKL_VML_DEBUG_CPU_TYPE  MKL's exp, log, sqrt, sin, cos (torch 2.13), which do not follow MKL_CBWR
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_DYNAMIC": "FALSE",
    "MKL_VML_DEBUG_CPU_TYPE": "0",
}


def use_portable_code(*configs: Any) -> None:
    """Set `PORTABLE` for torch, and for processes that are started, where a plain configuration has portable_bits.

    Edge   a process that has loaded torch computes as before; `is_portable` is False there. A processor
           without AVX2 is left alone: torch would obey, and end the process
    """
    if any(map(_is_portable_asked, configs)) and "avx2" in cpu_flags():
        os.environ.update(PORTABLE)


def _is_portable_asked(plain: Any) -> bool:
    if isinstance(plain, Mapping):
        return plain.get("portable_bits") is True or any(map(_is_portable_asked, plain.values()))
    return isinstance(plain, list | tuple) and any(map(_is_portable_asked, plain))


def is_portable() -> bool:
    """Whether this process has the environment `PORTABLE`, and torch was loaded in it."""
    named = all(os.environ.get(name) == value for name, value in PORTABLE.items())
    return named and cpu_capability() == "AVX2"


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this machine's processor, as Linux names them ("avx2", "avx512f")."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((x.split(":")[1] for x in lines if x.startswith("flags")), "").split())


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

    Edge     None where torch is not loaded; it is not loaded here
    """
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.backends.cpu.get_cpu_capability())


def memory_bytes() -> int:
    """Memory of this machine, in bytes; of a container with a limit, the limit."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdigit() else installed
