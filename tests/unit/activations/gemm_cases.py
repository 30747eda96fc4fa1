"""Products with an activation in their last step: on a GPU where there is one, else interpreted.

Run by test_fused_gemm.py in a process of its own, as triton_cases.py is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch import Tensor, nn

from stamm.activations.catalog import get
from stamm.activations.fused import gpu, operation
from stamm.activations.fused.gemm import block, choice, measure, product
from stamm.activations.fused.gemm.choice import Shape, Step, Tile
from stamm.activations.kernel_lookup import kernel_of
from stamm.activations.module import build_activation
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError, DataError, RunError

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
SINGLE = 2.0**-24  # half the spacing of float32 beside 1
FUNCTION = (
    2.0**-20
)  # what f and f' may be off by, of what they are made of, before they are rounded
STEPS: tuple[Step, ...] = ("forward", "backward")
SMALL = Tile(tall=64, wide=32, deep=32, warps=4, stages=2, group=2)
MOVED = replace(SMALL, descriptors=True)  # where rows are not of 16 bytes, pointers serve
TILES = (SMALL, replace(SMALL, parts=2), MOVED, replace(MOVED, parts=4))
# Rows, columns and depth: whole tiles but in depth; none whole; all whole; rows that are not of 16
# bytes; a single one; nothing to add; one more tile than its group.
SHAPES = [
    (64, 32, 40),
    (70, 88, 40),
    (64, 96, 32),
    (37, 53, 19),
    (1, 3, 1),
    (5, 8, 0),
    (130, 40, 72),
]
POISON: list[tuple[Tensor, int]] = []


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All new memory holds NaN, and nobody writes behind its end."""
    empty = torch.empty

    def guarded(*size: Any, **options: Any) -> Tensor:
        shape = torch.Size(size[0] if size and not isinstance(size[0], int) else size)
        dtype = options.pop("dtype", None) or torch.get_default_dtype()
        if not dtype.is_floating_point or options.get("pin_memory"):
            return empty(*size, dtype=dtype, **options)
        whole = empty(shape.numel() + 64, dtype=dtype, **options).fill_(torch.nan)
        POISON.append((whole, shape.numel()))
        return whole[: shape.numel()].view(shape)

    def like(tensor: Tensor, **_: Any) -> Tensor:
        return guarded(*tensor.shape, dtype=tensor.dtype, device=tensor.device)

    POISON.clear()
    monkeypatch.setattr(torch, "empty", guarded)
    monkeypatch.setattr(torch, "empty_like", like)
    with np.errstate(all="ignore"):
        yield
    assert all(whole[end:].isnan().all() for whole, end in POISON)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder in which nothing was measured."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    choice._found.cache_clear()
    yield tmp_path
    choice._found.cache_clear()


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


class Case:
    """One product of each direction, and what it is in float64."""

    def __init__(
        self,
        spec: Spec,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        columns: int | None = None,
    ) -> None:
        rows, wide, deep = shape
        self.kernel, self.fixed = kernel_of(spec), product.fixed_values(spec)
        self.x, self.into = (drawn(rows, deep, seed=k, dtype=dtype) for k in (0, 1))
        scale = 1.5 / max(deep, 1) ** 0.5
        self.up = (drawn(wide, deep, seed=2, dtype=dtype) * scale).to(dtype)
        self.down = (drawn(deep, wide, seed=3, dtype=dtype) * scale).to(dtype)
        offset = torch.zeros(1) if columns is None else torch.linspace(0, 0.25, columns)
        self.parameters = [(p.initial + offset).to(DEVICE) for p in spec.trainable]
        self.eps = torch.finfo(dtype).eps
        self.tiny = torch.finfo(dtype).smallest_normal * self.eps

    def forward(self, tile: Tile, **options: Any) -> dict[str, Tensor]:
        x, up = self.x, self.up
        return product.forward(
            self.kernel, self.fixed, x, up, self.parameters, tile=tile, **options
        )

    def backward(self, tile: Tile, pre: Tensor) -> list[Tensor]:
        given = (self.into, self.down, pre, self.parameters)
        result, sums = product.backward(self.kernel, self.fixed, *given, tile=tile)
        return [result, *sums]

    def wide(self) -> tuple[Tensor | float, ...]:
        numbers = iter([p.double() for p in self.parameters])
        return tuple(next(numbers) if f is None else f for f in self.fixed)

    def value(self, x: Tensor) -> Tensor:
        return self.kernel.value(x, self.wide())

    def slopes(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.kernel.slopes(x, self.wide())


def multiplied(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """A product in float64, and how far off adding it in float32, in any order, may be."""
    a, b = left.double(), right.double()
    return a @ b, 2 * left.shape[1] * SINGLE * (a.abs() @ b.abs())


def within(found: Tensor, truth: Tensor, error: Tensor) -> bool:
    return bool(((found.double() - truth).abs() <= error).all())


@pytest.mark.parametrize("name", ["xielu", "relu2", "gelu", "silu"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(s, torch.bfloat16) for s in SHAPES] + [(s, torch.float16) for s in SHAPES[::3]],
)
def test_products_are_within_the_error_of_float32_sums_and_one_rounding(
    shape: tuple[int, int, int], name: str, dtype: torch.dtype
) -> None:
    """pre: the sum's error and half a unit. post: pre's error through f', and half a unit of f.

    Backward: the sum's error through f', and half a unit; sums: the same, of every term.
    """
    case = Case(get(name), shape, dtype)
    half = 0.5 * case.eps
    turn = (SHAPES.index(shape) + len(name)) % len(TILES)
    for tile in TILES[turn : turn + 1] if DEVICE == "cpu" else TILES:
        made = case.forward(tile)
        pre, post = made["pre"], made["post"]
        truth, off = multiplied(case.x, case.up.T)
        off = off + half * (truth.abs() + off) + case.tiny
        assert within(pre, truth, off)
        steepest = torch.maximum(case.slopes(truth)[0].abs(), case.slopes(pre.double())[0].abs())
        true_post = case.value(truth)
        made_of = FUNCTION * (1 + truth.abs() + true_post.abs())
        lost = 1.5 * steepest * off + 2 * off**2 + made_of  # f' may grow on the way, by |f''| <= 2
        assert within(post, true_post, lost + half * (true_post.abs() + lost) + case.tiny)

        found = case.backward(tile, pre)
        weight, off = multiplied(case.into, case.down)
        slope, *by_parameter = case.slopes(pre.double())
        lost = off * slope.abs() + (weight.abs() + off) * FUNCTION * (1 + slope.abs())
        true_slope = weight * slope
        assert within(found[0], true_slope, lost + half * (true_slope.abs() + lost) + case.tiny)
        assert len(found) == 1 + len(by_parameter)
        for total, each in zip(found[1:], by_parameter, strict=True):
            lost = off * each.abs() + (weight.abs() + off) * FUNCTION * (1 + each.abs())
            assert within(total, (weight * each).sum(), lost.sum())


@pytest.mark.parametrize("tile", [replace(SMALL, parts=2), replace(MOVED, parts=4)])
def test_f_takes_what_is_stored(tile: Tile) -> None:
    """The bits of a pointwise pass over pre, whatever is written: nothing tells them apart."""
    case = Case(get("xielu"), (70, 88, 40), torch.bfloat16)
    both = case.forward(tile)
    after = torch.empty_like(both["pre"])
    gpu.run(
        "forward", case.kernel, case.fixed, torch.float32, [both["pre"]], [after], case.parameters
    )
    assert torch.equal(both["post"], after)
    assert case.forward(tile, written="pre").keys() == {"pre"}
    assert torch.equal(case.forward(tile, written="pre")["pre"], both["pre"])
    assert torch.equal(case.forward(tile, written="post")["post"], both["post"])


@pytest.mark.parametrize("columns", [None, 88])
def test_bits_depend_on_tall_wide_and_deep_only(
    columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the run, the order of the tiles, who computes them, or how they are moved."""
    case = Case(get("xielu"), (70, 88, 40), torch.bfloat16, columns)
    pre = case.forward(SMALL)["pre"]
    first = case.backward(SMALL, pre)
    tiles = [SMALL, replace(SMALL, group=1), replace(MOVED, group=8)]
    for tile in tiles:
        assert torch.equal(case.forward(tile)["pre"], pre)
        assert all(map(torch.equal, case.backward(tile, pre), first))
    launch = gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda k, n, *rest: launch(k, min(n, 4), *rest))
    monkeypatch.setattr(gpu, "added_up", lambda module, partial: partial.double().sum(1))
    few = case.backward(SMALL, pre)  # four programs take six tiles
    assert torch.equal(few[0], first[0])
    for total, again in zip(few[1:], first[1:], strict=True):
        torch.testing.assert_close(total, again, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tile", [replace(SMALL, parts=2), MOVED])
def test_parameters_of_every_column(tile: Tile) -> None:
    case = Case(get("xielu"), (70, 88, 40), torch.bfloat16, 88)
    one = case.parameters[1][:1]  # one number for each column beside one for all
    for parameters in (case.parameters, [case.parameters[0], one]):
        case.parameters = parameters
        made = case.forward(tile)
        value = torch.empty_like(made["pre"])
        run = (case.kernel, case.fixed, torch.float32)
        gpu.run("forward", *run, [made["pre"]], [value], parameters)
        assert torch.equal(made["post"], value)
        found = case.backward(tile, made["pre"])
        weight, off = multiplied(case.into, case.down)
        slope, *by_parameter = case.slopes(made["pre"].double())
        bound = 0.51 * case.eps * (weight * slope).abs() + off * slope.abs() + 1e-5
        assert within(found[0], weight * slope, bound)
        for total, given, each in zip(found[1:], parameters, by_parameter, strict=True):
            assert total.shape == given.shape
            truth = (weight * each).sum(0) if given.numel() > 1 else (weight * each).sum()
            assert within(total, truth, torch.tensor(1e-3))


def test_strides_are_copied_and_what_does_not_fit_is_refused() -> None:
    case = Case(get("silu"), (70, 88, 40), torch.bfloat16)
    made = case.forward(MOVED)
    x, up = case.x, case.up
    case.x, case.up = x.T.contiguous().T, torch.cat([up, up], dim=1)[:, :40]
    assert torch.equal(case.forward(MOVED)["post"], made["post"])
    case.x, case.into = x[:, :24], x[:1].expand(70, 40)
    with pytest.raises(ConfigError, match="inner dimension"):
        case.forward(MOVED)
    case.backward(MOVED, made["pre"])  # a gradient of one row for all
    with pytest.raises(ConfigError, match="what the forward pass stored"):
        case.backward(MOVED, made["pre"][1:])
    case.x, case.up = x.float(), up.float()
    with pytest.raises(ConfigError, match="float32"):
        case.forward(MOVED)


def test_nan_and_infinities_come_through() -> None:
    case = Case(get("xielu"), (70, 88, 40), torch.bfloat16)
    case.x[3, 5], case.x[4, 5] = torch.nan, torch.inf
    for tile in (SMALL, MOVED):
        made = case.forward(tile)
        assert made["post"][3].isnan().all()
        assert made["post"][4].isinf().all()
        assert made["post"][[*range(3), *range(5, 70)]].isfinite().all()
        assert case.backward(tile, made["pre"])[0][3].isnan().all()


@pytest.mark.parametrize("columns", [None, 88])
@pytest.mark.parametrize("tile", [SMALL, MOVED])
def test_what_is_beyond_the_edges_is_not_summed(tile: Tile, columns: int | None) -> None:
    """Of an f whose gradient is infinite at the 0 that is read there: 0 times it would be NaN."""
    case = Case(get("prelu"), (70, 88, 40), torch.bfloat16, columns)
    case.kernel = replace(case.kernel, slopes=lambda x, parameters: (x, 1 / x))
    pre = 1 + drawn(70, 88, seed=5).abs()
    total = case.backward(tile, pre)[1].double()
    terms = multiplied(case.into, case.down)[0] / pre.double()
    truth = terms.sum(0) if columns else terms.sum().reshape(1)
    assert within(total, truth, torch.tensor(1e-3))


def linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=DEVICE)
    made.weight = nn.Parameter(weight)
    return made


@pytest.mark.parametrize("steps", [(), ("forward",), ("forward", "backward")])
def test_a_block_has_the_modules_gradients(
    steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within what 16-bit roundings cost, and the same bits whether f is kept or not."""
    used: list[str] = []
    run = product._run
    monkeypatch.setattr(product, "_run", lambda step, *rest: used.append(step) or run(step, *rest))
    monkeypatch.setattr(block, "measured_faster", lambda step, *_: step in steps)
    monkeypatch.setattr(product, "tile_for", lambda *_: SMALL)
    activation = build_activation("xielu").to(DEVICE)
    up, x = drawn(48, 24, seed=1) / 4, drawn(2, 20, 24, seed=3)
    # Of one sign, so that a parameter's gradient is a sum in which nothing cancels.
    down, into = drawn(24, 48, seed=2).abs() / 4, drawn(2, 20, 24, seed=4).abs()

    def gradients(dtype: torch.dtype, kept: bool | None) -> list[Tensor]:
        leaf, first, last = (
            x.to(dtype).requires_grad_(),
            linear(up.to(dtype)),
            linear(down.to(dtype)),
        )
        if kept is None:
            y = last(activation(first(leaf)))
        else:
            y = block.fused_block(leaf, first, activation, last, keep_post=kept)
        wanted = [leaf, first.weight, last.weight, *activation.parameters()]
        return [y.detach(), *torch.autograd.grad(y, wanted, into.to(dtype))]

    kept, again = gradients(torch.bfloat16, True), gradients(torch.bfloat16, False)
    assert used == 2 * list(steps)
    assert all(map(torch.equal, kept, again))
    for found, truth in zip(kept, gradients(torch.float64, None), strict=True):
        assert (found.double() - truth).norm() <= 2 * 2.0**-8 * truth.norm()


def test_a_block_can_be_differentiated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "measured_faster", lambda *_: True)
    monkeypatch.setattr(product, "tile_for", lambda *_: SMALL)
    activation = build_activation("silu").to(DEVICE)
    up, down, x = drawn(48, 24, seed=1) / 4, drawn(24, 48, seed=2) / 4, drawn(20, 24, seed=3)

    def second(dtype: torch.dtype, fused: bool) -> Tensor:
        leaf, first, last = (
            x.to(dtype).requires_grad_(),
            linear(up.to(dtype)),
            linear(down.to(dtype)),
        )
        y = (
            block.fused_block(leaf, first, activation, last, keep_post=True)
            if fused
            else last(activation(first(leaf)))
        )
        (slope,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), leaf)[0]

    truth = second(torch.float64, False)
    assert (second(torch.bfloat16, True).double() - truth).norm() <= 4 * 2.0**-8 * truth.norm()


@pytest.mark.parametrize("step", STEPS)
def test_a_measurement_is_kept_and_decides(home: Path, step: Step) -> None:
    spec, shape, device = get("xielu"), Shape(rows=64, columns=64, depth=32), torch.device(DEVICE)
    key = kernel_of(spec).content_hash
    asked = (step, shape, torch.bfloat16, device, key)
    assert not choice.measured_faster(*asked)
    unmeasured = choice.tile_for(*asked)
    tiles = [SMALL, replace(SMALL, tall=128)]
    choice._found.cache_clear()
    found = measure.measure(step, shape, torch.bfloat16, device, spec, rounds=3, tiles=tiles)
    assert json.loads(json.dumps(found)) == found
    assert found["refused"] == {}
    assert found["tile"] in [vars(tile) for tile in tiles]
    ratio = found["ratio"]
    assert 0 < ratio["p20"] <= ratio["p50"] <= ratio["p80"] < math.inf
    assert found["faster"] is (ratio["p80"] < 1)
    assert choice.measured_faster(*asked) is found["faster"]
    assert choice.tile_for(*asked) == Tile(**found["tile"]) != unmeasured
    other = (step, replace(shape, rows=65), *asked[2:])
    assert not choice.measured_faster(*other)
    path = choice.results_file(device)
    assert path is not None
    held = json.loads(path.read_text())
    (name,) = held["results"]
    for versions, faster in (("torch 0", False), (choice._versions(), True)):
        held["results"][name] |= {"versions": versions, "faster": True}
        path.write_text(json.dumps(held))
        choice._found.cache_clear()
        assert choice.measured_faster(*asked) is faster


@pytest.mark.parametrize(
    "damage", ["[1", "[]", "{}", '{"schema": 1, "results": 3}', "tile", "entry"]
)
def test_damaged_results_are_told(home: Path, damage: str) -> None:
    shape, device = Shape(rows=64, columns=64, depth=32), torch.device(DEVICE)
    asked = ("forward", shape, torch.bfloat16, device, "key")
    choice.record(*asked, SMALL, {"faster": True})
    path = choice.results_file(device)
    assert path is not None
    assert choice.measured_faster(*asked)
    if damage in ("tile", "entry"):
        held = json.loads(path.read_text())
        (name,) = held["results"]
        held["results"][name] = 3 if damage == "entry" else held["results"][name] | {"tile": {}}
        damage = json.dumps(held)
    path.write_text(damage)
    choice._found.cache_clear()
    with pytest.raises(DataError, match=r"[Dd]elete"):
        choice.measured_faster(*asked)


@pytest.mark.parametrize(("won", "faster"), [(10, True), (9, True), (7, False), (2, False)])
def test_faster_means_four_of_five_pairs(
    won: int, faster: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turns(
        clock: object, works: dict[object, object], rounds: int, *, warm_up: int
    ) -> dict[object, list[float]]:
        times = [[1.0] * rounds, [0.9] * won + [1.1] * (rounds - won)]
        return dict(zip(works, times, strict=False))

    monkeypatch.setattr(measure, "in_turns", in_turns)
    shape, device = Shape(rows=64, columns=32, depth=32), torch.device(DEVICE)
    given = ("forward", shape, torch.bfloat16, device, get("silu"))
    assert measure.measure(*given, rounds=10, tiles=[SMALL])["faster"] is faster


def test_a_kernel_that_computes_something_else_is_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = product.forward

    def wrong(*given: Any, **options: Any) -> dict[str, Tensor]:
        return {name: t * 1.1 for name, t in forward(*given, **options).items()}

    monkeypatch.setattr(product, "forward", wrong)
    shape, device = Shape(rows=64, columns=64, depth=32), torch.device(DEVICE)
    with pytest.raises(RunError, match="something else"):
        measure.measure("forward", shape, torch.bfloat16, device, get("silu"), tiles=[SMALL])
    path = choice.results_file(device)
    assert path is not None and not path.exists()


def test_tiles_that_do_not_fit_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    forward = product.forward

    def small(*given: Any, tile: Tile) -> dict[str, Tensor]:
        if tile.tall > 64:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return forward(*given, tile=tile)

    monkeypatch.setattr(product, "forward", small)
    shape, device = Shape(rows=64, columns=64, depth=32), torch.device(DEVICE)
    given = ("forward", shape, torch.bfloat16, device, get("silu"))
    tall = replace(SMALL, tall=128)
    found = measure.measure(*given, rounds=2, tiles=[tall, SMALL])
    assert list(found["refused"]) == [str(tall)]
    assert found["tile"] == vars(SMALL)
    with pytest.raises(RunError, match="none of 1 tiles fits"):
        measure.measure(*given, tiles=[tall])


def test_modules_are_served_where_it_was_measured_and_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "serves", lambda x: True)
    monkeypatch.setattr(operation, "SMALLEST", 1)
    up, down = linear(drawn(48, 24, seed=1)), linear(drawn(24, 48, seed=2))
    activation, x = build_activation("xielu").to(DEVICE), drawn(20, 24, seed=3)
    given = (x, up, activation, down)
    assert not block.serves(*given)
    monkeypatch.setattr(block, "measured_faster", lambda step, *_: step == "backward")
    assert block.serves(*given)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not block.serves(*given)
    handle = up.register_forward_hook(lambda *_: None)
    assert not block.serves(*given)
    handle.remove()
    assert block.serves(*given)
    assert not block.serves(x.float(), *given[1:])
    assert not block.serves(x, nn.Linear(24, 48, dtype=x.dtype, device=DEVICE), activation, down)
    assert not block.serves(x, up, build_activation("xielu", compat="eps"), down)
    assert not block.serves(x, up, build_activation("xielu", neurons=48), down)
    assert not block.serves(x, up, nn.SiLU(), down)
    assert not torch.func.vmap(lambda row: torch.tensor(block.serves(row, *given[1:])))(x).any()
