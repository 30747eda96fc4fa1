"""The Triton kernel of the loss: its cases on a GPU or in the interpreter, and compiled without a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.activations.ahead_of_time import compiled_for_nvidia, ran_in_a_process_of_its_own

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
CASES = Path(__file__).with_name("softmax_rows_cases.py")


def test_the_cases_pass() -> None:
    ran_in_a_process_of_its_own(CASES, "")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_compiles_for_a_gpu_without_spilling(dtype: torch.dtype) -> None:
    """Reads and writes 16 bytes in each lane."""
    from stamm.losses import softmax_rows as module

    numbers = [torch.empty(4) for _ in range(3)]
    arguments: list[Any] = [torch.empty(4, 1024, dtype=dtype), torch.zeros(4).long(), *numbers]
    sizes = {"WANTED": True, "BLOCK": module._BLOCK, "num_warps": module._WARPS}
    made = compiled_for_nvidia(module._row, [*arguments, 131_072, 0.5], sizes)
    assert made.spilled == 0
    assert made.count("LDG.E.128") >= 2
    assert made.count("STG.E.128") >= 1


def test_the_logit_of_the_target_is_read_before_any_gradient_is_written() -> None:
    """A load after the last sum would race with another warp's write; a sum is a barrier for all warps."""
    from stamm.losses import softmax_rows as module

    numbers = [torch.empty(4) for _ in range(3)]
    arguments: list[Any] = [torch.empty(4, 1024), torch.zeros(4).long(), *numbers]
    sizes = {"WANTED": True, "BLOCK": 1024, "num_warps": module._WARPS}
    found = compiled_for_nvidia(module._row, [*arguments, 131_072, 0.5], sizes).assembly
    lines = [line for line in found.splitlines() if "LDG" in line or "BAR.SYNC" in line]
    places = [k for k, line in enumerate(lines) if "BAR.SYNC" in line]
    # Label, its logit and logits of the row; only the scale of the row and its second reading come later.
    assert sum("LDG" in line for line in lines[: places[0]]) >= 3
