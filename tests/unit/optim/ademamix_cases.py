"""The Triton kernel of AdEMAMix: on a GPU where there is one, else in Triton's interpreter.

Run by test_fused.py in a process of its own: the interpreter is chosen for a whole process, when
Triton is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from stamm.activations.fused import gpu
from stamm.optim import fused
from stamm.optim.ademamix_math import numbers_at, update_lists
from stamm.optim.config import AdEMAMix


def arrays(count: int, kind: str) -> list[np.ndarray]:
    """p, g, fast, slow and square, of sizes that `kind` names."""
    random = np.random.RandomState(count)
    low, high = {"plain": (0, 0), "tiny": (-45, -30), "huge": (15, 38)}.get(kind, (-40, 30))
    with np.errstate(all="ignore"):
        made = [
            (random.randn(count) * 10.0 ** random.uniform(low, high, count)).astype(np.float32)
            for _ in range(5)
        ]
    if kind == "special":
        for array in made:
            array[random.rand(count) < 0.3] = 0.0
            array[random.rand(count) < 0.2] = -0.0
            array[random.rand(count) < 0.05] = np.inf
            array[random.rand(count) < 0.05] = -np.inf
            array[random.rand(count) < 0.05] = np.nan
    made[4] = np.abs(made[4])
    return made


def same(expected: Sequence[np.ndarray], found: Sequence[Tensor]) -> bool:
    """Whether all bits are the same; a NaN is any NaN."""
    for a, tensor in zip(expected, found, strict=True):
        b = tensor.detach().cpu().numpy()
        nan = np.isnan(a)
        if not (np.isnan(b) == nan).all() or (a.view(np.int32) != b.view(np.int32))[~nan].any():
            return False
    return True


@pytest.mark.parametrize("count", [1, 1000, 2048, 20_011])
@pytest.mark.parametrize("kind", ["plain", "tiny", "huge", "mixed", "special"])
def test_triton_gives_the_bits_of_lists(count: int, kind: str) -> None:
    device = "cuda" if gpu.unavailable_reason() is None else "cpu"
    given = arrays(count, kind)
    listed = [torch.from_numpy(a.copy()) for a in given]
    tensors = [torch.from_numpy(a.copy()).to(device) for a in given]
    numbers = numbers_at(AdEMAMix(), 5, 20, 1e-3, 0.1)
    update_lists([listed], numbers)
    with np.errstate(all="ignore"):
        fused.update_triton(tensors, numbers)
    assert same([t.numpy() for t in listed], tensors)
