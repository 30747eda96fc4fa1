"""Log-probabilities of completions, and activation parameters, on models that FSDP2 divides over two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import environment

SCRIPT = Path(__file__).with_name("sequence_processes.py")


def test_values_and_gradients_are_those_of_one_process() -> None:
    divisions = (
        {"context": 1, "tensor": 1},
        {"context": 2, "tensor": 1},
        {"context": 1, "tensor": 2},
    )
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*start, str(SCRIPT), *map(json.dumps, divisions)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
