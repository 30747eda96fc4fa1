"""The GPU kernels before the judge: on a GPU where there is one, else in Triton's interpreter.

Run by test_fused_triton.py in processes of their own: the interpreter is chosen for a whole
process, when Triton is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from stamm.activations.catalog import ENTRIES, get
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance import judge as judging
from stamm.activations.conformance.exact import inputs, knots
from stamm.activations.conformance.implementations import Bound
from stamm.activations.conformance.ulp import dtype_name, neighbours
from stamm.activations.fused import gpu
from stamm.activations.fused.passes import Fixed, PassName, graph_of
from stamm.activations.fused.triton_source import source
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError

INTERPRETED = bool(triton.knobs.runtime.interpret)
DEVICE = "cpu" if INTERPRETED else "cuda"
# As `ops` computes by default: 16-bit in float32, float32 in float64.
COMPUTING = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
}
STEP, COUNT = (97, 500) if INTERPRETED else (1, 20_000)
SINGULAR = (torch.nan, torch.inf, -torch.inf)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some of the 16-bit inputs, and tiles of a size that suits the interpreter."""

    def fewer(spec: Spec, values: Mapping[str, float], dtype: torch.dtype, *, count: int) -> Tensor:
        every = inputs(spec, values, dtype, count=count)
        points = [0.0, torch.finfo(dtype).tiny, *knots(spec, values)]
        chosen = torch.isin(every, neighbours(torch.tensor(points).to(dtype)))
        chosen[:: STEP if dtype.itemsize == 2 else 1] = True
        chosen[-1] = True
        return every[chosen]

    monkeypatch.setattr(judging, "inputs", fewer)
    if INTERPRETED:
        monkeypatch.setattr(gpu, "BLOCK", 4096)
        monkeypatch.setattr(gpu, "TILE", 4096)
        monkeypatch.setattr(gpu, "WIDE", 1024)
        monkeypatch.setattr(gpu, "ROWS", 4)
    with np.errstate(all="ignore"):
        yield


def fixed_of(spec: Spec) -> Fixed:
    return tuple(None if p.trainable else p.initial for p in spec.parameters)


def poisoned(like: Tensor, count: int) -> list[Tensor]:
    return [torch.full_like(like, torch.nan, device=DEVICE) for _ in range(count)]


def ran(
    name: str, spec: Spec, read: Sequence[Tensor], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Outputs and sums of a pass, in `computing` as usual, on memory that was NaN."""
    gated = "gated_" if isinstance(spec.arity, Gated) else ""
    read = [t.to(DEVICE) for t in read]
    parameters = [t.to(DEVICE) for t in parameters]
    written = poisoned(read[-1], 2 if gated and name == "backward" else 1)
    chosen: PassName = f"{gated}{name}"  # type: ignore[assignment]
    computing = COMPUTING[read[0].dtype]
    kernel, fixed = kernel_of(spec), fixed_of(spec)
    sums = gpu.run(chosen, kernel, fixed, computing, read, written, parameters)
    return [t.cpu() for t in (*written, *sums)]


@dataclass(frozen=True)
class Kernels:
    """The kernels of an entry as an implementation to judge."""

    name: str = "triton"

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """Values as the kernels hold them: trainable ones in float32, constants as they compute."""
        leaves = {p.name: torch.tensor(values[p.name]) for p in spec.trainable}
        exact = {n: torch.tensor(v, dtype=COMPUTING[dtype]).item() for n, v in values.items()}
        exact |= {name: leaf.item() for name, leaf in leaves.items()}
        inputs = 2 if isinstance(spec.arity, Gated) else 1

        class Backward(torch.autograd.Function):
            @staticmethod
            def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
                return tuple(ran("backward", spec, tensors[: inputs + 1], tensors[inputs + 1 :]))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
                # One column for each element: the sums are then what it adds by itself.
                size = info.batch_size
                read = [t.reshape(1, -1).expand(1, size) for t in tensors[: inputs + 1]]
                given = [t.expand(size).contiguous() for t in tensors[inputs + 1 :]]
                found = ran("backward", spec, read, given)
                outputs = [t.reshape(tensors[1].shape) for t in found[:inputs]]
                return (*outputs, *found[inputs:]), (0,) * len(found)

        class Forward(torch.autograd.Function):
            @staticmethod
            def forward(*tensors: Tensor) -> Tensor:
                return ran("forward", spec, tensors[:inputs], tensors[inputs:])[0]

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, into: Tensor) -> Any:
                return Backward.apply(into, *ctx.saved_tensors)

            @staticmethod
            def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
                return Forward.forward(*tensors), 0

        def call(given: Mapping[str, Tensor], *tensors: Tensor) -> Tensor:
            return Forward.apply(*tensors, *given.values())

        return Bound(call, exact, leaves, holds="effective")


def representatives() -> set[str]:
    """Few entries that together use every function, arity and number of parameters of the catalogue."""
    uses: dict[str, set[str]] = {}
    for spec in ENTRIES:
        name: PassName = "gated_backward" if isinstance(spec.arity, Gated) else "backward"
        graph = graph_of(name, kernel_of(spec), fixed_of(spec), torch.float32)
        text = source(
            graph, torch.float32, "flat", parameters=len(spec.trainable), interpreted=True
        )
        functions = re.findall(r"\b(?:tl|functions)\.\w+", text)
        uses[spec.name] = {*functions, f"{name} {len(spec.trainable)}"}
    missing = set().union(*uses.values())
    chosen = set()
    while missing:
        best = max(uses, key=lambda name: len(uses[name] & missing))
        chosen.add(best)
        missing -= uses[best]
    return chosen


# The slow interpreter leaves the other entries to the sweep, and of float16, which differs from
# bfloat16 in two conversions only, takes some.
CHOSEN = [
    pytest.param(
        spec, dtype, id=f"{'' if spec.name in few else 'sweep-'}{spec.name}-{dtype_name(dtype)}"
    )
    for few in [representatives()]
    for dtype in COMPUTING
    for spec in ENTRIES[:: 4 if INTERPRETED and dtype == torch.float16 else 1]
]


@pytest.mark.parametrize(("spec", "dtype"), CHOSEN)
def test_an_entry_is_within_its_budget(spec: Spec, dtype: torch.dtype) -> None:
    verdict = judging.judge(spec, Kernels(), dtypes=[dtype], count=COUNT)
    (found,) = verdict.dtypes
    slopes = len(spec.trainable) + (2 if isinstance(spec.arity, Gated) else 1)
    assert len({q.quantity.removesuffix(" (mixed up)") for q in found.quantities}) == 1 + slopes
    assert found.inputs > 400
    assert found.problems == (), found.budget_reason
    at_singular_points(spec, dtype)


def at_singular_points(spec: Spec, dtype: torch.dtype) -> None:
    """NaN and infinities give what torch's functions give in the computing dtype."""
    x = torch.tensor(SINGULAR, dtype=dtype)
    one = torch.ones_like(x)
    gated = isinstance(spec.arity, Gated)
    given = [torch.tensor(p.initial) for p in spec.trainable]
    wide = COMPUTING[dtype]
    numbers = iter([p.to(wide) for p in given])
    parameters = tuple(next(numbers) if f is None else f for f in fixed_of(spec))
    kernel = kernel_of(spec)
    factor = torch.ones((), dtype=wide)
    if kernel.up is not None:
        factor = kernel.up.value(factor, parameters)
    value = ran("forward", spec, [x, one][: 1 + gated], given)[0]
    slope = ran("backward", spec, [one, x, one][: 2 + gated], given)[0]
    for found, true in (
        (value, kernel.value(x.to(wide), parameters)),
        (slope, kernel.slopes(x.to(wide), parameters)[0]),
    ):
        near = {"rtol": 4 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).tiny}
        torch.testing.assert_close(found, (true * factor).to(dtype), equal_nan=True, **near)


def made(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).bfloat16()


def initial(spec: Spec, columns: int | None = None) -> list[Tensor]:
    """The parameters at their initial values, or a little off in each column."""
    offset = torch.zeros(()) if columns is None else torch.linspace(0, 0.25, columns)
    return [p.initial + offset for p in spec.trainable]


def true_sums(spec: Spec, weight: Tensor, x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """In float64, a row for each parameter: what every element adds."""
    numbers = iter([p.double() for p in parameters])
    taken = tuple(next(numbers) if f is None else f for f in fixed_of(spec))
    return [weight.double() * s for s in kernel_of(spec).slopes(x.double(), taken)[1:]]


def close(found: Tensor, terms: Tensor) -> bool:
    """Whether sums (one, or one for each column) are right to what float32 can add."""
    rows = terms.reshape(-1, found.numel())
    error = (found.double().reshape(-1) - rows.sum(0)).abs()
    return bool((error <= 1e-6 * rows.abs().sum(0)).all())


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 5000])
def test_layout_tails(size: int) -> None:
    spec = get("xielu")
    weight, x = made(size), made(size, seed=1)
    whole = made(size + 16, seed=2)
    guarded = whole.clone().to(DEVICE)
    given = initial(spec)
    found = ran("backward", spec, [weight, x], given)
    read = [weight.to(DEVICE), x.to(DEVICE)]
    written = guarded[8:-8]
    on_device = [p.to(DEVICE) for p in given]
    kernel, fixed = kernel_of(spec), fixed_of(spec)
    sums = gpu.run("backward", kernel, fixed, torch.float32, read, [written], on_device)
    assert torch.equal(written.cpu(), found[0])
    for side in (slice(8), slice(-8, None)):  # nothing is written beside the output
        assert torch.equal(guarded[side].cpu(), whole[side])
    for again, total, terms in zip(sums, found[1:], true_sums(spec, weight, x, given), strict=True):
        assert torch.equal(again.cpu(), total)
        assert close(total, terms)


def test_layout_nothing_and_a_single_number() -> None:
    spec = get("xielu")
    assert ran("forward", spec, [made(0, 8)], initial(spec))[0].shape == (0, 8)
    output, *sums = ran("backward", spec, [made(0, 8), made(0, 8)], initial(spec))
    assert output.shape == (0, 8)
    assert all(total.item() == 0 for total in sums)
    x = made(1)[0]
    assert torch.equal(
        ran("forward", spec, [x], initial(spec))[0],
        ran("forward", spec, [x[None]], initial(spec))[0][0],
    )


@pytest.mark.parametrize("shape", [(1, 7), (5, 300), (3, 7, 24), (600, 3), (512, 7), (64, 512)])
def test_layout_steps_change_no_output(shape: tuple[int, ...]) -> None:
    spec = get("xielu")
    weight, x = made(*shape), made(*shape, seed=1)
    flat, *sums = ran("backward", spec, [weight, x], initial(spec))
    wide = made(*shape[:-1], 3 * shape[-1])
    wide[..., ::3] = x
    every_third = wide[..., ::3]
    wide = made(*shape[:-1], 2 * shape[-1])
    wide[..., shape[-1] :] = weight
    half = wide[..., shape[-1] :]
    stepped, *others = ran("backward", spec, [half, every_third], initial(spec))
    assert torch.equal(stepped, flat)
    for found, other, terms in zip(
        sums, others, true_sums(spec, weight, x, initial(spec)), strict=True
    ):
        assert close(found, terms)
        assert close(other, terms)


@pytest.mark.parametrize("shape", [(1, 7), (5, 300), (3, 7, 24), (600, 3), (512, 7), (9,)])
def test_layout_parameters_of_every_column(shape: tuple[int, ...]) -> None:
    spec = get("xielu")
    weight, x = made(*shape), made(*shape, seed=1)
    given = initial(spec, shape[-1])
    mixed = [given[0], initial(spec)[1]]  # one for each column beside one for all
    for parameters in (given, mixed):
        output, *sums = ran("backward", spec, [weight, x], parameters)
        value = ran("forward", spec, [x], parameters)[0]
        for column in {0, shape[-1] // 2, shape[-1] - 1}:
            own = [p[column] if p.dim() else p for p in parameters]
            part = [t[..., column].contiguous() for t in (weight, x)]
            assert torch.equal(output[..., column], ran("backward", spec, part, own)[0])
            assert torch.equal(value[..., column], ran("forward", spec, part[1:], own)[0])
        for found, p, terms in zip(
            sums, parameters, true_sums(spec, weight, x, parameters), strict=True
        ):
            assert found.shape == p.shape
            assert close(found, terms)


@pytest.mark.parametrize("name", ["swiglu", "xielu_glu", "swiglu_oai"])
def test_layout_gate_and_up_are_halves_of_one_tensor(name: str) -> None:
    spec = get(name)
    both, weight = made(12, 2 * 96), made(12, 96, seed=1)
    gate, up = both[:, :96], both[:, 96:]
    given = initial(spec)
    flat = ran("backward", spec, [weight, gate.contiguous(), up.contiguous()], given)
    halves = torch.full_like(both, torch.nan).to(DEVICE)
    written = [halves[:, :96], halves[:, 96:]]
    read = [t.to(DEVICE) for t in (weight, gate, up)]
    on_device = [p.to(DEVICE) for p in given]
    kernel, fixed = kernel_of(spec), fixed_of(spec)
    gpu.run("gated_backward", kernel, fixed, torch.float32, read, written, on_device)
    assert torch.equal(written[0].cpu(), flat[0])
    assert torch.equal(written[1].cpu(), flat[1])
    assert torch.equal(
        ran("forward", spec, [gate, up], given)[0],
        ran("forward", spec, [gate.contiguous(), up.contiguous()], given)[0],
    )


def test_layout_sums_are_a_tree_with_the_same_bits_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "BLOCK", 32)
    monkeypatch.setattr(gpu, "TILE", 64)
    monkeypatch.setattr(gpu, "WIDE", 16)
    monkeypatch.setattr(gpu, "ROWS", 8)
    monkeypatch.setattr(gpu, "ADDED", 128)  # 150 parts take two steps, 8 for each column three
    spec = get("xielu")
    weight, x = made(60, 80), made(60, 80, seed=1)
    for given in (initial(spec), initial(spec, 80)):
        first, again = (ran("backward", spec, [weight, x], given) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        for total, terms in zip(first[1:], true_sums(spec, weight, x, given), strict=True):
            assert close(total, terms)


def test_layout_tables_are_looked_up() -> None:
    rows = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])

    def value(x: Tensor, parameters: Any) -> Tensor:
        place = torch.floor(torch.clamp(x, 0.0, 2.0)).long()
        return torch.take(rows[0], place) + x * torch.take(rows[1], place)

    kernel = replace(kernel_of(get("relu")), value=value)
    x = made(300)
    (output,) = poisoned(x, 1)
    gpu.run("forward", kernel, (), torch.float32, [x.to(DEVICE)], [output], [])
    assert torch.equal(output.cpu(), value(x.float(), ()).bfloat16())


def test_layout_outputs_that_are_no_matrix_are_refused() -> None:
    spec = get("relu")
    x = made(4, 6, 8).to(DEVICE)
    crooked = torch.empty(6, 4, 8, dtype=x.dtype, device=DEVICE).transpose(0, 1)
    with pytest.raises(ConfigError, match="not a matrix"):
        gpu.run("forward", kernel_of(spec), fixed_of(spec), torch.float32, [x], [crooked], [])
