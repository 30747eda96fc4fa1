"""Work on data from strangers, done by a copy of this process that may be stopped.

Inside a library's C code nothing can be interrupted; only a process can be ended from outside.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 20  # seconds of wall time for each of processor time: then the copy is stuck
_STATM = Path("/proc/self/statm")


def apart(work: Callable[[], bytes], *, cpu_s: int, memory_bytes: int) -> bytes | None:
    """What `work` gives; None when it was ended at a bound, or failed.

    cpu_s          seconds of processor time
    memory_bytes   address space beyond that of this process (bounded on Linux only)
    Edge           an error that `work` raises gives None, too: what a library raises where it gets
                   no memory has many names, and to do it again here would have no bound.
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
    """In the copy: do the work, hand it over and end, without anything that ends a program."""
    code = os.EX_SOFTWARE
    try:
        gc.disable()  # what it would collect belongs to threads that this copy does not have
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
