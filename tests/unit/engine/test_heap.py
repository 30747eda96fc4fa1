"""What is not a tensor is kept, too, and given back when asked; what runs out is told."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stamm.base.errors import RunError
from stamm.engine.heap import give_back_freed_memory, keep_freed_memory, memory_told

# Pieces of a size that glibc by itself gives back at once; a process of its own, whose heap is young.
_PROGRAM = """
import resource, sys
from stamm.engine.heap import keep_freed_memory
assert sys.argv[1] == "no" or not keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray(b"x") * 2**24 for _ in range(8)]
    del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc")
def test_what_was_freed_is_there_again() -> None:
    def counted(keep: str) -> int:
        command = [sys.executable, "-c", _PROGRAM, keep]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout)

    kept, given_back = counted("yes"), counted("no")
    assert kept < given_back / 10


_GIVEN_BACK = """
import re
from stamm.engine.heap import give_back_freed_memory, keep_freed_memory
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024
assert not keep_freed_memory()
pieces = [bytearray(b"x") * 2**23 for _ in range(32)]  # 256 MiB
last = bytearray(2**20)  # lies behind them, so that they leave a hole
full = resident()
del pieces
kept = resident()
give_back_freed_memory()
print(full - kept, kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc")
def test_what_was_kept_is_given_back_when_asked() -> None:
    command = [sys.executable, "-c", _GIVEN_BACK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    when_freed, when_asked = map(int, done.stdout.split())
    assert when_freed < 16 and when_asked > 240


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    monkeypatch.setattr("stamm.engine.heap._take_over", functools.lru_cache(lambda: "none"))
    assert keep_freed_memory() == "none"
    give_back_freed_memory()


def test_without_a_compiler_it_says_what_is_lost(tmp_path: Path) -> None:
    program = (
        "from stamm.engine.heap import *; print(keep_freed_memory()); give_back_freed_memory()"
    )
    command = [sys.executable, "-c", program]
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=bare)
    assert "no C++ compiler" in done.stdout


def test_memory_that_runs_out_is_told_in_one_line() -> None:
    for ask in (lambda: torch.empty(2**50, dtype=torch.float64), lambda: bytearray(2**62)):
        with (
            pytest.raises(RunError, match=r"too little memory.*micro_batch") as told,
            memory_told(),
        ):
            ask()
        assert "\n" not in told.value.line()
    with pytest.raises(RuntimeError, match=r"^other$"), memory_told():
        raise RuntimeError("other")
