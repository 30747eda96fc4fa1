"""Probes of stamm's own module: what a training run relies on, tried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from stamm.activations.conformance.budgets import budget
from stamm.activations.conformance.exact import SLOPE, exact_quantities
from stamm.activations.conformance.implementations import Bound, StammImplementation
from stamm.activations.conformance.inputs import knots, mixed_ups
from stamm.activations.conformance.ulp import dtype_name, neighbours
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.module.activation import module_of
from stamm.activations.spec import Gated, Spec

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_SHORT = (torch.bfloat16, torch.float16)
_REACH = 6.0
_AWAY = 0.02  # difference quotients stay this far from the knots
_ROWS, _WIDTH = 96, 1024
_EXTREMES = (0.0, 1e-45, 1e-38, 1e-8, 1.0, 20.0, 89.0, 745.0, 65504.0, 1e19, 3e38)


def probe(spec: Spec) -> list[CheckResult]:
    """Every probe of a new module for the spec, at its initial values.

    Checked  tests/unit/activations/test_conformance_probes.py
    """
    return [
        finding("gradients in float64", lambda: _gradcheck(spec)),
        finding("double backward", lambda: _twice(spec)),
        finding("no NaN at the extremes", lambda: _extremes(spec)),
        finding("NaN in, NaN out", lambda: _nan(spec)),
        finding("slope at the knots", lambda: _at_knots(spec)),
        finding("same bits for every thread count", lambda: _threads(spec)),
        finding("same bits for every split of rows", lambda: _rows(spec)),
        finding("parameters stay float32", lambda: _width(spec)),
    ]


def _gradcheck(spec: Spec) -> tuple[bool, str]:
    bound, leaves, inputs = _case(spec)
    if spec.surrogate:
        # Declared as no derivative: it is compared with its formula instead.
        return _surrogate(spec, bound, inputs)
    worst = 0.0
    for tensors, slopes in _quotients(bound, leaves, inputs):
        worst = max(worst, _gap(tensors, slopes))
    count = len(inputs[0])
    described = f"{count} inputs, {len(leaves)} parameters, largest difference {worst:.2g}"
    return worst < 1e-6, described + " from difference quotients"


def _twice(spec: Spec) -> tuple[bool, str]:
    bound, leaves, inputs = _case(spec)
    names = list(leaves)
    passed = torch.autograd.gradgradcheck(
        lambda *t: bound.function(dict(zip(names, t[: len(names)], strict=True)), *t[len(names) :]),
        (*leaves.values(), *inputs),
        raise_exception=False,
        atol=1e-5,
        rtol=1e-4,
    )
    return passed, f"{len(inputs[0])} inputs, {len(names)} parameters, against difference quotients"


def _extremes(spec: Spec) -> tuple[bool, str]:
    bad = []
    count = 0
    for dtype in _DTYPES:
        bound = StammImplementation().bind(spec, spec.initial_values(), dtype)
        top = torch.finfo(dtype)
        half = torch.tensor([*_EXTREMES, top.max, top.tiny], dtype=torch.float64).to(dtype)
        reach = budget(
            spec.name, dtype_name(dtype)
        ).reach  # the verdict reports it where it is finite
        half = half[torch.isfinite(half) & (half <= reach)]
        x = torch.cat([half, -half]).requires_grad_()
        ups = [torch.ones_like(x)] if isinstance(spec.arity, Gated) else []
        y = bound(x, *ups)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
        wrong = torch.isnan(y) | (torch.isnan(slope) & ~_at_singular_knots(spec, bound, x))
        count += len(x)
        bad += [f"{dtype_name(dtype)} at x = {at:g}" for at in x[wrong].tolist()]
    return not bad, ", ".join(bad[:3]) or f"{count} inputs of {len(_DTYPES)} dtypes"


def _nan(spec: Spec) -> tuple[bool, str]:
    kept = []
    for dtype in _DTYPES:
        bound = StammImplementation().bind(spec, spec.initial_values(), dtype)
        x = torch.full((2,), torch.nan, dtype=dtype)
        y = bound(x, *([torch.ones_like(x)] if isinstance(spec.arity, Gated) else []))
        if not torch.isnan(y).all():
            kept.append(dtype_name(dtype))
    return not kept, f"lost in {', '.join(kept)}" if kept else f"{len(_DTYPES)} dtypes"


def _at_knots(spec: Spec) -> tuple[bool, str]:
    """The slope that comes back lies between the gradients on both sides of the knot."""
    checked, wrong, infinite = 0, [], 0
    for dtype in _DTYPES:
        bound = StammImplementation().bind(spec, spec.initial_values(), dtype)
        points = torch.tensor(knots(spec, bound.values), dtype=torch.float64)
        x = points.to(dtype).requires_grad_()
        if not len(x):
            return True, "there are none"
        ups = [torch.ones_like(x)] if isinstance(spec.arity, Gated) else []
        y = bound(x, *ups)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
        at = x.detach()
        around = neighbours(neighbours(at)).double()
        sides = exact_quantities(spec, bound.values, around, _ones(around, ups))[SLOPE].values
        grouped = sides.reshape(len(x), -1)
        low, high = grouped.min(-1).values, grouped.max(-1).values
        slack = 4 * torch.finfo(dtype).eps * torch.maximum(low.abs(), high.abs())
        inside = (slope.double() >= low - slack) & (slope.double() <= high + slack)
        known = torch.isfinite(low) & torch.isfinite(high)
        infinite += int((~known).sum())
        checked += len(x)
        wrong += [f"{dtype_name(dtype)} at x = {k:g}" for k in at[known & ~inside].tolist()]
    described = f"{checked} slopes lie between those on both sides"
    described += f", {infinite} of them at an infinite gradient" if infinite else ""
    return not wrong, f"outside: {', '.join(wrong[:3])}" if wrong else described


def _threads(spec: Spec) -> tuple[bool, str]:
    before = torch.get_num_threads()
    counts = (1, 2, 3)
    found = []
    try:
        for count in counts:
            torch.set_num_threads(count)
            found.append(
                [part for dtype in (torch.bfloat16, torch.float32) for part in _step(spec, dtype)]
            )
    finally:
        torch.set_num_threads(before)
    same = all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )
    described = (
        f"{len(found[0])} results of {_ROWS}x{_WIDTH} inputs, {', '.join(map(str, counts))} threads"
    )
    return same, described


def _rows(spec: Spec) -> tuple[bool, str]:
    """Rows computed apart have the bits they have together: outputs and input gradients."""
    parts = (1, 7, _ROWS)
    found = []
    for size in parts:
        slices = [_step(spec, torch.bfloat16, i, i + size)[:2] for i in range(0, _ROWS, size)]
        found.append([torch.cat(column) for column in zip(*slices, strict=True)])
    same = all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )
    return same, f"{_ROWS} rows in parts of {', '.join(map(str, parts))}"


def _width(spec: Spec) -> tuple[bool, str]:
    if not spec.trainable:
        return True, "there are none"
    kept = True
    for dtype in _SHORT:
        module: nn.Module = nn.Sequential(module_of(spec)).to(dtype)
        kept &= all(p.dtype == torch.float32 for p in module.parameters())
    return kept, f"{len(spec.trainable)} under .bfloat16() and .half()"


def _case(spec: Spec) -> tuple[Bound, dict[str, Tensor], tuple[Tensor, ...]]:
    """A float64 module and inputs between the knots."""
    bound = StammImplementation().bind(spec, spec.initial_values(), torch.float64)
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in bound.leaves.items()}
    x = torch.linspace(-_REACH, _REACH, 25, dtype=torch.float64) + 0.0137
    points = torch.tensor(knots(spec, bound.values), dtype=torch.float64)
    x = x[((x[:, None] - points).abs() > _AWAY).all(-1)]
    inputs = [x.requires_grad_()]
    if isinstance(spec.arity, Gated):
        inputs.append(mixed_ups(len(x), torch.float64).requires_grad_())
    return bound, leaves, tuple(inputs)


def _quotients(
    bound: Bound, leaves: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each leaf and input the gradient of a weighted sum, and its difference quotient."""
    weight = mixed_ups(len(inputs[0]), torch.float64)
    tensors = [*leaves.values(), *inputs]
    names = list(leaves)

    def total(parts: list[Tensor]) -> Tensor:
        held = dict(zip(names, parts[: len(names)], strict=True))
        return bound.function(held, *parts[len(names) :]) * weight

    gradients = torch.autograd.grad(total(tensors).sum(), tensors)
    with torch.no_grad():
        for i, gradient in enumerate(gradients):
            step = 1e-5
            moved = []
            for side in (step, -step):
                parts = [t + side if j == i else t for j, t in enumerate(tensors)]
                moved.append(total(parts))
            quotient = (moved[0] - moved[1]) / (2 * step)
            yield gradient, quotient if i >= len(names) else quotient.sum().reshape(gradient.shape)


def _surrogate(spec: Spec, bound: Bound, inputs: tuple[Tensor, ...]) -> tuple[bool, str]:
    y = bound(*inputs)
    (slope,) = torch.autograd.grad(y, inputs[0], torch.ones_like(y))
    up = inputs[1].detach() if len(inputs) > 1 else None
    stated = exact_quantities(spec, bound.values, inputs[0].detach(), up)[SLOPE].values
    worst = _gap(slope, stated)
    return worst < 1e-12, f"the declared surrogate, largest difference {worst:.2g}"


def _step(spec: Spec, dtype: torch.dtype, start: int = 0, stop: int = _ROWS) -> list[Tensor]:
    """Output, input gradients and parameter gradients of some rows of one fixed input."""
    module = module_of(spec)
    every = mixed_ups(3 * _ROWS * _WIDTH, torch.float64).reshape(3, _ROWS, _WIDTH)
    x, up, weight = (every[i, start:stop].to(dtype) for i in range(3))
    x.requires_grad_()
    y = module(x, up) if isinstance(spec.arity, Gated) else module(x)
    tensors = [x, *module.parameters()]
    return [y.detach(), *torch.autograd.grad(y, tensors, weight)]


def _at_singular_knots(spec: Spec, bound: Bound, x: Tensor) -> Tensor:
    points = knots(spec, bound.values) if spec.continuity == "singular" else []
    return torch.isin(x.detach().double(), torch.tensor(points, dtype=torch.float64))


def _gap(found: Tensor, true: Tensor) -> float:
    return ((found - true).abs() / (1 + true.abs())).max().item()


def _ones(x: Tensor, ups: list[Tensor]) -> Tensor | None:
    return torch.ones_like(x) if ups else None
