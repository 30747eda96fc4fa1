"""Every entry on the device, through its module, before the judge: each finite 16-bit input."""

from __future__ import annotations

import pytest
import torch

from stamm.activations.catalog import ENTRIES
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.ulp import dtype_name
from stamm.activations.fused.operation import SMALLEST
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Spec
from tests.gpu.on_device import OnDevice, padded

SAMPLES = 20_000  # float32 inputs, beside the neighbours of knots and zeros
SINGULAR = (torch.nan, torch.inf, -torch.inf)
CASES = [
    pytest.param(spec, dtype, id=f"{spec.name}-{dtype_name(dtype)}")
    for spec in ENTRIES
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
]


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_an_entry_is_within_its_budget(
    spec: Spec, dtype: torch.dtype, device: torch.device, passes: list[str]
) -> None:
    (found,) = judge(spec, OnDevice(device), dtypes=[dtype], count=SAMPLES).dtypes
    gated = isinstance(spec.arity, Gated)
    slopes = len(spec.trainable) + (2 if gated else 1)
    assert len({q.quantity.removesuffix(" (mixed up)") for q in found.quantities}) == 1 + slopes
    assert found.problems == (), found.budget_reason
    kinds = {"gated_forward", "gated_backward"} if gated else {"forward", "backward"}
    assert set(passes) == kinds
    assert found.inputs > (SAMPLES if dtype == torch.float32 else 40_000)


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_nan_and_infinity_are_what_torch_makes_of_them(
    spec: Spec, dtype: torch.dtype, device: torch.device, passes: list[str]
) -> None:
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    x = torch.tensor(SINGULAR, dtype=dtype)
    inputs = [x, torch.ones_like(x)][: 1 + isinstance(spec.arity, Gated)]
    leaves = [p.detach() for p in build_activation(spec).parameters()]
    kernel = kernel_of(spec)
    given = tuple(torch.tensor(p.initial, dtype=wide) for p in spec.parameters)
    factor = torch.ones((), dtype=wide)
    if kernel.up is not None:
        factor = kernel.up.value(factor, given)
    judged = OnDevice(device)
    (value,) = judged.run(spec, None, inputs, leaves)
    slope = judged.run(spec, torch.ones_like(x), inputs, leaves)[0]
    rtol, atol = 4 * torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    for found, true in (
        (value, kernel.value(x.to(wide), given)),
        (slope, kernel.slopes(x.to(wide), given)[0]),
    ):
        expected = (true * factor).to(dtype)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    assert padded(x).numel() == SMALLEST
    assert len(passes) == 3  # forward; forward and backward
