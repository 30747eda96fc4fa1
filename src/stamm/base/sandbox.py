"""Work on untrusted data in a forked process with bounds on time and memory.

A library's C code cannot be interrupted; only a process can be killed from outside.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 20  # seconds of wall time per second of processor time before it counts as stuck
_STATM = Path("/proc/self/statm")


def apart(work: Callable[[], bytes], *, cpu_s: int, memory_bytes: int) -> bytes | None:
    """Result of `work` in a forked process; None when it was killed at a bound, or failed.

    cpu_s          seconds of processor time
    memory_bytes   address space beyond that of this process (bounded on Linux only)
    Edge           an exception of `work` gives None, too: libraries raise many types without
                   memory, and a repetition in this process would have no bound.
    """
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        _end_with(work, writer, cpu_s, memory_bytes)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as opened:
            answer = opened.read()
    except BaseException:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
        raise
    _, status = os.waitpid(copy, 0)
    return answer if status == 0 else None


def _end_with(work: Callable[[], bytes], writer: int, cpu_s: int, memory_bytes: int) -> None:
    """In the fork: do the work, send the result and exit without cleaning up the program."""
    code = os.EX_SOFTWARE
    try:
        gc.disable()  # objects may belong to threads that the fork does not have
        signal.alarm(cpu_s * _PATIENCE)
        _bound(resource.RLIMIT_CORE, 0)
        _bound(resource.RLIMIT_CPU, cpu_s)
        if _STATM.exists():
            held = int(_STATM.read_text().split()[0]) * resource.getpagesize()
            _bound(resource.RLIMIT_AS, held + memory_bytes)
        with os.fdopen(writer, "wb") as opened:
            opened.write(work())
        code = os.EX_OK
    finally:
        os._exit(code)


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
