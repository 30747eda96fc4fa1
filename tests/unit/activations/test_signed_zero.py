"""f(-0) is -0 where f rises through 0: what every function of that kind is just below 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.activations.catalog import ENTRIES, get
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Spec

# Sums that no product with x stands for without a division or a power: +0 at -0.
SUMS = {"snake", "snake_beta", "xiprelup"}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _applied(spec: Spec, x: Tensor) -> Tensor:
    module = build_activation(spec, dtype=x.dtype if x.dtype == torch.float64 else torch.float32)
    inputs = (x, torch.ones_like(x)) if isinstance(spec.arity, Gated) else (x,)
    found: Tensor = module(*inputs).detach()
    return found


def _rises(spec: Spec) -> bool:
    """Whether f(0) = 0, f is negative just below 0 and positive just above."""
    parameters = tuple(
        torch.tensor(p.initial, dtype=torch.float64) if p.trainable else p.initial
        for p in spec.parameters
    )
    x = torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64)
    below, at, above = kernel_of(spec).value(x, parameters).tolist()
    return bool(below < 0 == at < above)


RISING = [spec for spec in ENTRIES if _rises(spec)]


def test_most_entries_rise_through_0() -> None:
    assert len(RISING) > 60
    assert {"xielu", "elu", "gelu", "silu", "hard_swish", *SUMS} <= {spec.name for spec in RISING}


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_the_sign_of_zero_comes_through(dtype: torch.dtype, count: int) -> None:
    lost = set()
    for spec in RISING:
        zeros = _applied(spec, torch.tensor([-0.0, 0.0] * count, dtype=dtype))
        assert (zeros == 0).all(), spec.name
        assert not zeros[1::2].signbit().any(), spec.name
        if not zeros[::2].signbit().all():
            lost.add(spec.name)
    assert lost == SUMS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["xielu", "celu", "hard_swish", "softplus_saturated"])
def test_and_through_fused_passes(name: str, dtype: torch.dtype) -> None:
    zeros = _applied(get(name), torch.tensor([-0.0, 0.0], dtype=dtype).repeat(2**15))
    assert (zeros == 0).all()
    assert zeros[::2].signbit().all()
    assert not zeros[1::2].signbit().any()
