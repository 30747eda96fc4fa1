"""No race and no access outside a tensor: NVIDIA's compute-sanitizer watches the kernels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import environment as base_environment

WORKER = Path(__file__).with_name("race_worker.py")
TOOL = "compute-sanitizer"
FINITE = "finite gradients: 24"  # 3 of each of 8 steps
SECONDS = 240


def _ran(device: torch.device, *before: str) -> subprocess.CompletedProcess[str]:
    # Without torch's own pool every tensor is an allocation, whose ends the tool knows.
    environment = {**base_environment(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run(
        [*before, sys.executable, str(WORKER), device.type],
        capture_output=True,
        text=True,
        env=environment,
        timeout=SECONDS,
        check=False,
    )


def test_the_worker_works_by_itself(device: torch.device) -> None:
    done = _ran(device)
    assert done.returncode == 0, done.stderr[-3000:]
    assert FINITE in done.stdout


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool: str, device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip(f"not run: {TOOL} watches GPUs")
    if shutil.which(TOOL) is None:
        pytest.skip(f"not run: {TOOL} is not there")
    done = _ran(device, TOOL, "--tool", tool, "--error-exitcode", "77")
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip(f"not run: {TOOL} does not support this device")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert FINITE in done.stdout
    summary = "ERROR SUMMARY: 0 errors" if tool == "memcheck" else "RACECHECK SUMMARY: 0 hazards"
    assert summary in done.stdout
