"""Log-probabilities of completions, and activation parameters, on models that FSDP2 divides over two processes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import environment
from tests.forked import Parent

SCRIPT = Path(__file__).with_name("sequence_processes.py")


def test_values_and_gradients_are_those_of_one_process(parent: Parent, tmp_path: Path) -> None:
    divisions = (
        {"context": 1, "tensor": 1},
        {"context": 2, "tensor": 1},
        {"context": 1, "tensor": 2},
    )
    said = [str(SCRIPT), *map(json.dumps, divisions)]
    done = parent.run(said, tmp_path, environment(), ranks=2, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
