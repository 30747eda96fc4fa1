"""The tests of tests/gpu on the kernels of a CPU, so that they work where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.activations.fused import build

ROOT = Path(__file__).parents[3]
# Every file of it; of the entries those that the README names, since each takes the compiler seconds.
ENTRIES = "xielu or swiglu"


@pytest.mark.slow
@pytest.mark.skipif(build.unavailable_reason() is not None, reason="no C++ compiler")
def test_the_gpu_tests_pass_on_a_cpu() -> None:
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--on", "cpu", "-q", "-x"]
    command += ["-p", "no:cacheprovider", "-k", f"not (numerics or repeats) or {ENTRIES}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
