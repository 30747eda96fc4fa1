"""Measuring whether a product with a pass in it beats the library's product and the pass after it.

Each candidate is timed, and the fastest one meets the library in pairs. What was found is kept:
from the next process on it decides which of the two is used.
"""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from stamm.activations.benchmark.clock import Timed, clock_of
from stamm.activations.benchmark.interleave import in_turns, quantiles
from stamm.activations.fused import gpu
from stamm.activations.fused.gemm import product
from stamm.activations.fused.gemm.choice import (
    Shape,
    Step,
    Tile,
    candidates,
    described,
    device_name,
    record,
)
from stamm.activations.kernel_lookup import kernel_of
from stamm.activations.spec import Spec
from stamm.base.errors import RunError

ROUNDS = 30
_TRIED = 5  # calls of each candidate
_WARM_UP = 2
_CLOSE = 4  # units of the dtype's rounding, of the norm: two roundings cost less

Call = Callable[[], list[Tensor]]


def measure(
    step: Step,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    spec: Spec,
    *,
    rounds: int = ROUNDS,
    tiles: Sequence[Tile] | None = None,
) -> dict[str, Any]:
    """What was found, as it is also kept: seconds p20, p50 and p80 of both, and of their ratio.

    shape    of the product: tokens, width of the block, hidden dimension
    tiles    what is tried; None for all that are known for the device and the shape
    faster   whether the fused one won in four of five pairs
    Edge     the kept tile decides in which order later processes add: their bits may differ from
             those of earlier ones, never from each other's.
    Raises   RunError when no candidate fits the device, or when one computes something else.
    Checked  tests/unit/activations/test_fused_gemm.py
    """
    library, fused = _arms(step, shape, dtype, device, spec)
    clock, refused = clock_of(device), {}
    medians: dict[Tile, float] = {}
    expected = library()[0]
    known = candidates(shape, descriptors=described(device)) if tiles is None else tiles
    too_large = importlib.import_module("triton.runtime.errors").OutOfResources
    for tile in known:
        try:
            _agrees(fused(tile), fused(tile), expected, tile)
        except too_large as error:
            refused[str(tile)] = str(error)
            continue
        works = {tile: _timed(functools.partial(fused, tile))}
        medians[tile] = statistics.median(in_turns(clock, works, _TRIED, warm_up=_WARM_UP)[tile])
    if not medians:
        raise RunError(
            f"none of {len(known)} tiles fits {device_name(device)}: {next(iter(refused.values()))}",
            fix="Leave the product to the library: nothing was kept",
        )
    best = min(medians, key=lambda tile: medians[tile])
    pair = {"library": _timed(library), "fused": _timed(functools.partial(fused, best))}
    times = in_turns(clock, pair, rounds, warm_up=_WARM_UP)
    ratios = [mine / theirs for theirs, mine in zip(*times.values(), strict=True)]
    result = {
        "library_s": asdict(quantiles(times["library"])),
        "fused_s": asdict(quantiles(times["fused"])),
        "ratio": asdict(quantiles(ratios)),
        "faster": quantiles(ratios).p80 < 1,
    }
    record(step, shape, dtype, device, kernel_of(spec).content_hash, best, result)
    return {
        "step": step,
        "shape": asdict(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "device": device_name(device),
        "activation": spec.name,
        "tile": asdict(best),
        **result,
        "refused": refused,
    }


def _arms(
    step: Step, shape: Shape, dtype: torch.dtype, device: torch.device, spec: Spec
) -> tuple[Call, Callable[[Tile], list[Tensor]]]:
    """The library's product with the pass after it, and the fused product: results, then sums."""
    kernel, fixed = kernel_of(spec), product.fixed_values(spec)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    parameters = [torch.full((1,), p.initial, device=device) for p in spec.trainable]
    left = drawn(shape.rows, shape.depth).to(dtype)
    right = (drawn(shape.columns, shape.depth) / shape.depth**0.5).to(dtype)
    first, second = (
        torch.empty(shape.rows, shape.columns, dtype=dtype, device=device) for _ in range(2)
    )
    if step == "forward":

        def library() -> list[Tensor]:
            torch.mm(left, right.T, out=first)
            gpu.run("forward", kernel, fixed, torch.float32, [first], [second], parameters)
            return [second, first]

        def fused(tile: Tile) -> list[Tensor]:
            made = product.forward(kernel, fixed, left, right, parameters, tile=tile)
            return [made["post"], made["pre"]]

        return library, fused
    pre, down = drawn(shape.rows, shape.columns).to(dtype), right.T.contiguous()

    def library_backward() -> list[Tensor]:
        torch.mm(left, down, out=first)
        read = [first, pre]
        sums = gpu.run("backward", kernel, fixed, torch.float32, read, [second], parameters)
        return [second, *sums]

    def fused_backward(tile: Tile) -> list[Tensor]:
        made, sums = product.backward(kernel, fixed, left, down, pre, parameters, tile=tile)
        return [made, *sums]

    return library_backward, fused_backward


def _agrees(found: list[Tensor], again: list[Tensor], expected: Tensor, tile: Tile) -> None:
    if not all(map(torch.equal, found, again)):
        raise RunError(f"{tile} gives other bits on its second run", fix="Report it: it is a bug")
    truth = expected.float()
    error = float((found[0].float() - truth).norm() / truth.norm())
    if not error <= _CLOSE * torch.finfo(expected.dtype).eps:
        raise RunError(
            f"{tile} computes something else: {100 * error:.1f} % off the library's product",
            fix="Report it: it is a bug",
        )


def _timed(call: Call) -> Timed:
    """With nothing to prepare."""
    return (lambda: None), call
