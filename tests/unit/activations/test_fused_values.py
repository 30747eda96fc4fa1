"""Single values of fused passes: ties, long sums, and what lies at the ends of the number line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import build, cpu
from stamm.activations.fused.passes import PassName, graph_of
from stamm.activations.module.ops import _computing, _operations
from stamm.activations.spec import Gated, Spec

pytestmark = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)


def _fixed(spec: Spec) -> tuple[float | None, ...]:
    return tuple(None if p.trainable else p.initial for p in spec.parameters)


def test_ties_are_rounded_to_even() -> None:
    """Products of two bfloat16 numbers have up to 16 bits: every mantissa with every other one."""
    kernel = kernel_of(catalog.get("reglu"))
    mantissas = 1 + torch.arange(128) / 128
    gate, up = (t.flatten().bfloat16() for t in torch.meshgrid(mantissas, mantissas, indexing="ij"))
    found = torch.empty_like(gate)
    cpu.run("gated_forward", kernel, (), torch.float32, [gate, up], [found], [])
    exact = gate.float() * up.float()
    assert torch.equal(found, exact.bfloat16())
    half_up = ((exact.view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
    assert (found != half_up).sum() > 100


def test_sums_reach_float64_before_small_numbers_are_lost() -> None:
    """2,048 elements at 2**20 each, then 6,144 ones: lanes of float32 would not see a one."""
    spec = catalog.get("xielu")
    x, weight = torch.ones(8192), torch.ones(8192)
    weight[:2048] = 2.0**20
    values = [torch.tensor([0.8]), torch.tensor([1.7])]
    sums = cpu.run(
        "backward",
        kernel_of(spec),
        _fixed(spec),
        torch.float32,
        [weight, x],
        [torch.empty_like(x)],
        values,
    )
    assert sums[0].item() == 2.0**31 + 6144


def _covering() -> list[Spec]:
    """Entries whose backward passes together hold every operation of the catalogue's passes."""
    holds = {}
    for spec in catalog.ENTRIES:
        name: PassName = "gated_backward" if isinstance(spec.arity, Gated) else "backward"
        graph = graph_of(name, kernel_of(spec), _fixed(spec), torch.float32)
        holds[spec.name] = {graph.nodes[place].name for place in graph.needed()}
    missing, found = set().union(*holds.values()), []
    while missing:
        best = max(holds, key=lambda entry: len(holds[entry] & missing))
        missing -= holds[best]
        found.append(catalog.get(best))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spec", _covering(), ids=lambda spec: spec.name)
def test_zeros_infinities_and_nan_are_those_of_the_eager_form(
    spec: Spec, dtype: torch.dtype
) -> None:
    """All entries gave the eager form's zeros, signs, infinities and NaN on 2026-11-22."""
    largest = torch.finfo(dtype).max
    ends = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, largest, -largest]
    x = torch.tensor(ends, dtype=torch.float64).to(dtype)
    gated, one = isinstance(spec.arity, Gated), torch.ones_like(x)
    inputs = [x, one] if gated else [x]
    kernel, fixed, computing = kernel_of(spec), _fixed(spec), _computing(x, True)
    values = [torch.tensor([p.initial]) for p in spec.trainable]
    names: tuple[PassName, PassName] = (
        ("gated_forward", "gated_backward") if gated else ("forward", "backward")
    )
    result, gradients = torch.empty_like(x), [torch.empty_like(x) for _ in inputs]
    cpu.run(names[0], kernel, fixed, computing, inputs, [result], values)
    cpu.run(names[1], kernel, fixed, computing, [one, *inputs], gradients, values)
    eager = _operations(kernel, fixed, True)
    call, slopes = (
        (eager.gated, eager.gated_gradients) if gated else (eager.plain, eager.plain_gradients)
    )
    wanted = [call(*inputs, *values), *slopes(one, inputs, values)[: len(inputs)]]
    for found, true in zip([result, *gradients], wanted, strict=True):
        assert _kinds(found) == _kinds(true)


def _kinds(values: Tensor) -> list[str]:
    """What each number is, apart from its digits."""
    return [
        "nan" if v != v else f"{'-' if sign else '+'}{'0' if v == 0 else 'inf' if v - v else 'x'}"
        for v, sign in zip(values.tolist(), values.signbit().tolist(), strict=True)
    ]
