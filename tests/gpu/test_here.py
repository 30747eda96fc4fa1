"""Whether the tests of this folder can run at all."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import why_not


def test_the_device_is_here(pytestconfig: pytest.Config, device: torch.device) -> None:
    why = why_not(pytestconfig)
    if why is not None:
        pytest.skip(f"the tests of tests/gpu are not run: {why}")
    assert torch.ones(2, device=device).sum().item() == 2
