"""Steps, tails, nothing, a single number and more than 2**31 of them: the layout changes no bit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused.operation import SMALLEST
from stamm.activations.module import Activation, build_activation, xielu

GIB = 2**30
HUGE = 2**31 + 9 * 2**12 + 3  # elements: no offset of the last ones fits into 32 bits
PIECE = 2**28


def normal(*shape: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).bfloat16().to(device)


def step(module: torch.nn.Module, weight: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The result, the gradients of the inputs, those of the parameters."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    result = module(*leaves)
    return [
        result.detach(),
        *torch.autograd.grad(result, [*leaves, *module.parameters()], weight),
    ]


def close(found: Tensor, terms: Tensor) -> bool:
    """Whether sums, one or one for each column, are right to what float32 can add."""
    rows = terms.reshape(-1, found.numel())
    error = (found.double().reshape(-1) - rows.sum(0)).abs()
    return bool((error <= 1e-6 * rows.abs().sum(0)).all())


def true_terms(module: Activation, weight: Tensor, x: Tensor) -> list[Tensor]:
    """In float64, what every element adds to the gradient of each stored parameter of xielu."""
    values = [v.detach().double() for v in module.effective_tensors()]
    slopes = kernel_of(module.spec).slopes(x.double(), (*values, 0.5))[1:]
    raw = [p.detach().double() for p in module.parameters()]
    return [weight.double() * s * torch.sigmoid(r) for s, r in zip(slopes, raw, strict=True)]


def stepped(x: Tensor) -> list[Tensor]:
    """The same numbers in other memory: transposed, every third, the half of a wider tensor."""
    turned = x.t().contiguous().t()
    third = x.new_full((x.shape[0], 3 * x.shape[1]), torch.nan)[:, ::3].copy_(x)
    half = x.new_full((x.shape[0], 2 * x.shape[1]), torch.nan)[:, x.shape[1] :].copy_(x)
    apart = x.new_full((2 * x.shape[0], x.shape[1]), torch.nan)[::2].copy_(x)
    return [turned, third, half, apart]


@pytest.mark.parametrize("shape", [(64, 4096), (257, 1031), (40_000, 3), (1, 70_001)])
@pytest.mark.parametrize("each", [False, True], ids=["one shape", "one for each neuron"])
def test_steps_change_no_output_and_sums_are_right(
    shape: tuple[int, int], each: bool, device: torch.device, passes: list[str]
) -> None:
    module = xielu(neurons=shape[1] if each else None).to(device)
    if each:
        with torch.no_grad():
            for p in module.parameters():
                p += torch.linspace(0, 0.25, shape[1], device=device)
    x, weight = (normal(*shape, seed=s, device=device) for s in range(2))
    value, slope, *sums = step(module, weight, x)
    terms = true_terms(module, weight, x)
    for other in stepped(x):
        assert torch.equal(other, x)
        for into in (weight, weight.t().contiguous().t()):
            again, gradient, *others = step(module, into, other)
            assert torch.equal(again, value)
            assert torch.equal(gradient, slope)
            for found in (sums, others):
                assert all(close(f, t) for f, t in zip(found, terms, strict=True))
    assert len(passes) == 2 * (1 + 8)


@pytest.mark.parametrize("name", ["swiglu", "xielu_glu", "swiglu_oai"])
def test_gate_and_up_in_one_tensor_or_in_two(
    name: str, device: torch.device, passes: list[str]
) -> None:
    module = build_activation(name).to(device)
    layout = module.spec.arity.layout  # type: ignore[union-attr]
    both, weight = (normal(129, c, seed=c, device=device) for c in (2 * 1031, 1031))
    halves = {
        "gate_first": lambda t: (t[:, :1031], t[:, 1031:]),
        "up_first": lambda t: (t[:, 1031:], t[:, :1031]),
        "interleaved": lambda t: (t[:, ::2], t[:, 1::2]),
    }[layout]
    gate, up = halves(both)
    value, *gradients = step(module, weight, gate.contiguous(), up.contiguous())
    for again in (step(module, weight, gate, up), step(module, weight, gate, up.contiguous())):
        assert torch.equal(again[0], value)
        assert all(torch.equal(a, b) for a, b in zip(again[1:3], gradients[:2], strict=True))
    leaf = both.clone().requires_grad_()
    (one,) = torch.autograd.grad(module.of_fused(leaf), leaf, weight)  # type: ignore[operator]
    assert torch.equal(module.of_fused(both), value)  # type: ignore[operator]
    assert all(torch.equal(a, b) for a, b in zip(halves(one), gradients[:2], strict=True))
    assert len(passes) == 2 * 3 + 3


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0), (1,), ()])
def test_nothing_and_a_single_number(shape: tuple[int, ...], device: torch.device) -> None:
    module = xielu().to(device)
    x = torch.full(shape, -1.5, device=device, dtype=torch.bfloat16)
    value, slope, *sums = step(module, torch.ones_like(x), x)
    assert value.shape == slope.shape == x.shape
    many = x.new_full((SMALLEST,), -1.5)
    whole, gradient, *_ = step(module, torch.ones_like(many), many)
    assert torch.equal(value.reshape(-1), whole[: x.numel()])
    assert torch.equal(slope.reshape(-1), gradient[: x.numel()])
    assert [s.item() != 0 for s in sums] == [False, x.numel() == 1]  # of the other piece: nothing


@pytest.mark.parametrize("size", [SMALLEST, SMALLEST + 1, 2 * SMALLEST - 1])
def test_a_tail_knows_nothing_of_what_is_beside_it(
    size: int, device: torch.device, passes: list[str]
) -> None:
    module = xielu().to(device)
    x, weight = (normal(size, seed=s, device=device) for s in range(2))
    value, slope, *sums = step(module, weight, x)
    longer = [torch.cat([t, t.new_full((16,), torch.nan)]) for t in (x, weight)]
    again, gradient, *others = step(module, longer[1][:size], longer[0][:size])
    assert torch.equal(value, again) and torch.equal(slope, gradient)
    assert all(torch.equal(a, b) for a, b in zip(sums, others, strict=True))
    small = x.cpu().split(SMALLEST - 1)  # which the kernels leave to eager code
    eager = torch.cat([module.cpu()(part) for part in small])
    torch.testing.assert_close(value.cpu(), eager, rtol=2**-7, atol=1e-30)
    assert len(passes) == 4


def _room(device: torch.device, needed: int) -> None:
    if device.type == "cpu":
        pytest.skip("a CPU takes minutes for 2**31 elements")
    free, _ = torch.cuda.mem_get_info(device)
    if free < needed:
        pytest.skip(f"needs {needed / GIB:.0f} GiB, and {free / GIB:.0f} are free")


def _pieces(size: int) -> Sequence[slice]:
    return [slice(start, min(size, start + PIECE)) for start in range(0, size, PIECE)]


def test_more_than_2_to_the_31_elements(device: torch.device, passes: list[str]) -> None:
    _room(device, 32 * GIB)
    module = xielu().to(device)
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.empty(HUGE, dtype=torch.bfloat16, device=device).normal_(0, 2, generator=generator)
        for _ in range(2)
    )
    value, slope, *sums = step(module, weight, x)
    added = [torch.zeros((), dtype=torch.float64, device=device) for _ in sums]
    size = [torch.zeros((), dtype=torch.float64, device=device) for _ in sums]
    for piece in _pieces(HUGE):
        again, gradient, *parts = step(module, weight[piece], x[piece])
        assert torch.equal(again, value[piece])
        assert torch.equal(gradient, slope[piece])
        for k, part in enumerate(parts):
            added[k] += part.double()[0]
            size[k] += part.double()[0].abs()
    for total, expected, bound in zip(sums, added, size, strict=True):
        assert (total.double()[0] - expected).abs() <= 1e-6 * bound
    assert len(passes) == 2 + 2 * len(_pieces(HUGE))


def test_halves_of_more_than_2_to_the_31_elements(device: torch.device) -> None:
    """Rows with steps: gate and up are halves, and the last rows begin beyond 32 bits."""
    _room(device, 24 * GIB)
    module = build_activation("swiglu").to(device)
    generator = torch.Generator(device).manual_seed(0)
    both = torch.empty(2**16 + 3, 2**15, dtype=torch.bfloat16, device=device)
    both.normal_(0, 2, generator=generator)
    assert both.numel() > 2**31
    leaf = both.requires_grad_()
    value = module.of_fused(leaf)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(value, leaf, torch.ones_like(value))
    for rows in (slice(0, 64), slice(2**15, 2**15 + 64), slice(-64, None)):
        part = both.detach()[rows].clone().requires_grad_()
        again = module.of_fused(part)  # type: ignore[operator]
        assert torch.equal(again, value[rows])
        (slope,) = torch.autograd.grad(again, part, torch.ones_like(again))
        assert torch.equal(slope, gradient[rows])
