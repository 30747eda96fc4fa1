"""Accuracy in floating point: every 16-bit input of xIELU, and all entries against the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from stamm.activations.catalog import ENTRIES, family, get
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.reference import evaluate
from stamm.activations.conformance.ulp import ulps
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, Branches, bounds
from stamm.activations.derivation.stable_forms import lost_bits
from stamm.activations.fused.operation import use_eager
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Spec

APERTUS = {"alpha_p": 166.0, "alpha_n": 41.25}  # the sharpest layer of a released checkpoint
INITIAL = {"alpha_p": 0.8, "alpha_n": 0.8}
VALUES = {"alpha_p": 1.25, "alpha_n": 0.75, "alpha": 0.375, "beta": 0.5}
DENSITIES = ("normal_pdf", "normal_cdf", "normal_odd")


def parameters(spec: Spec, values: Mapping[str, float]) -> tuple[Tensor | float, ...]:
    full = {**spec.initial_values(), **values}
    return tuple(
        torch.tensor(full[p.name], dtype=torch.float64) if p.trainable else full[p.name]
        for p in spec.parameters
    )


def every_finite(dtype: torch.dtype) -> Tensor:
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    return patterns[torch.isfinite(patterns)]


@pytest.mark.parametrize("values", [INITIAL, APERTUS], ids=["initial", "apertus"])
@pytest.mark.parametrize(
    # 0.81 is f' at -0.98047, the number next to its root: 1e-4, computed in float32 from 0.5.
    ("dtype", "most"),
    [(torch.bfloat16, 0.51), (torch.float16, 0.82)],
    ids=["bf16", "fp16"],
)
def test_xielu_on_every_16_bit_input(
    dtype: torch.dtype, most: float, values: dict[str, float]
) -> None:
    module = build_activation("xielu")
    module.load_values(values, raw=False)
    x = every_finite(dtype).requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    exact = parameters(module.spec, module.effective())
    kernel = kernel_of(module.spec)
    wide = x.detach().double()
    for found, true in ((y, kernel.value(wide, exact)), (x.grad, kernel.slopes(wide, exact)[0])):
        assert found.dtype == dtype
        error = ulps(found.detach(), true)
        assert float(error.max()) <= most
        assert float(error.median()) <= 0.26


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("raw", [-1000.0, -20.0, -12.0], ids=["equal", "2e-9", "6e-6"])
def test_the_left_tail_of_xielu_where_alpha_n_is_nearly_beta(raw: float, fused: bool) -> None:
    """alpha_n (exp(x) - 1) + beta is alpha_n exp(x) there: against mpmath, at every bfloat16 in it."""
    module = build_activation("xielu")
    module.load_values({"alpha_n": raw}, raw=True)
    every = every_finite(torch.bfloat16)
    tail = every[(every < -0.004) & (every > -70)]
    x = tail.repeat(32 if fused else 1).requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    with mpmath.workdps(50):
        rise = mpmath.log1p(mpmath.exp(mpmath.mpf(raw)))
        pairs = []
        for u in map(mpmath.mpf, tail.tolist()):
            over = mpmath.expm1(u)
            f = (rise + 0.5) * (over - u) + u / 2
            pairs.append((float(f), float(rise * over + mpmath.exp(u) / 2)))
    for found, true in zip((y, x.grad), zip(*pairs, strict=True), strict=True):
        error = ulps(found.detach()[: len(tail)], torch.tensor(true, dtype=torch.float64))
        assert float(error.max()) <= 0.51


@pytest.mark.parametrize("values", [INITIAL, APERTUS], ids=["initial", "apertus"])
def test_xielu_in_float32(values: dict[str, float]) -> None:
    module = build_activation("xielu")
    module.load_values(values, raw=False)
    exact = parameters(module.spec, module.effective())
    kernel = kernel_of(module.spec)
    generator = torch.Generator().manual_seed(0)
    magnitude = 10 ** (torch.rand(200_000, generator=generator, dtype=torch.float64) * 25 - 7)
    x = torch.cat([magnitude, -magnitude]).float().requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    wide = x.detach().double()
    # Computed in float64 and rounded once: right to half an ulp even beside the roots.
    assert float(ulps(y.detach(), kernel.value(wide, exact)).max()) <= 0.5
    assert float(ulps(x.grad, kernel.slopes(wide, exact)[0]).max()) <= 0.5


@pytest.mark.parametrize("values", [INITIAL, APERTUS], ids=["initial", "apertus"])
def test_the_float64_kernel_of_xielu_against_any_precision(values: dict[str, float]) -> None:
    spec, derived = get("xielu"), derive(get("xielu"))
    full = {**spec.initial_values(), **values}
    root = -2.42 if values is INITIAL else -0.0245
    near = [root * (1 + k * 1e-4) for k in range(-20, 21)]
    points = [s * 10.0**k for k in range(-30, 4) for s in (-1.3, 1.3, -4.1, 4.1)] + near
    x = torch.tensor(points, dtype=torch.float64)
    kernel = kernel_of(spec)
    found = (
        kernel.value(x, parameters(spec, values)),
        kernel.slopes(x, parameters(spec, values))[0],
    )
    for result, exact in zip(found, (derived.exact.function, derived.exact.slope), strict=True):
        for value, true in zip(result.tolist(), evaluate(exact, points, full), strict=True):
            assert abs(value - true) <= 2.0**-29 * abs(true)  # a 32nd of a float32 ulp


@lru_cache
def expected(spec: Spec) -> list[tuple[str, list[Any], list[float]]]:
    """Per output its name, the truth at every point, and the error allowed there in ulp."""
    exact, stable = derive(spec).exact, derive(spec).stable
    names = [p.name for p in spec.trainable]
    named = [("value", exact.function, stable.function), ("slope", exact.slope, stable.slope)]
    named += zip(names, exact.parameter_slopes, stable.parameter_slopes, strict=True)
    named.append(("curvature", exact.curvature, stable.curvature))
    named += zip(names, exact.mixed, stable.mixed, strict=True)
    return [
        (name, evaluate(true, points(), VALUES), [_allowed(forms, x) for x in points()])
        for name, true, forms in named
    ]


def _allowed(forms: Branches, point: float) -> float:
    form = next(b.formula for b in forms if _holds(b, point))
    bits = lost_bits([form], [point], [VALUES])[0][0]
    # Each function is allowed four ulp; a normal tail has the condition x**2 besides.
    tail = 2.0 * point * point if any(word in str(form) for word in DENSITIES) else 0.0
    return float(4.0 * 2.0**bits + tail)


def points() -> list[float]:
    """Both sides of 0 and of the windows' ends, subnormal to large; exact in float32."""
    spread = [1.3 * 10.0**k for k in (-40, -30, -12, -8, -6, -4, -3, -2, -1, 0, 0.5, 1, 1.2, 4, 9)]
    ends = [0.0, 1.0, math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0), 0.9, 5.5]
    x = torch.tensor(spread + ends, dtype=torch.float64).float().double().tolist()
    return [sign * v for v in x for sign in (1.0, -1.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("spec", family("core"), ids=lambda s: s.name)
def test_every_kernel_against_the_truth(spec: Spec, dtype: torch.dtype) -> None:
    kernel = kernel_of(spec)
    exact = parameters(spec, VALUES)
    given = tuple(p.to(dtype) if isinstance(p, Tensor) else p for p in exact)
    x = torch.tensor(points(), dtype=dtype)
    count = 1 + len(spec.trainable)
    found = [kernel.value(x, given), *kernel.slopes(x, given), *kernel.curvatures(x, given)[:count]]
    information = torch.finfo(dtype)
    for (name, true, limits), result in zip(expected(spec), found, strict=True):
        for i, point in enumerate(points()):
            allowed = limits[i]
            floor = information.smallest_normal * information.eps * (4 + abs(point))
            error = abs(result[i].item() - true[i])
            limit = allowed * information.eps * abs(true[i]) + floor
            assert error <= limit, f"{name} at {point}: {result[i].item()} is not {true[i]}"


def _holds(branch: Branch, point: float) -> bool:
    low, high = bounds(branch, {})
    return bool(low < point <= high or (point == low and branch.low_closed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ENTRIES, ids=lambda s: s.name)
def test_extremes_give_no_nan(spec: Spec, dtype: torch.dtype) -> None:
    """Of the eager form; test_every_entry.py judges the kernels at every exponent."""
    module = build_activation(spec)
    use_eager(module.forms, eager=True)
    top = torch.finfo(dtype).max
    extremes = [0.0, -0.0, 1e-40, -1e-40, 30.0, -30.0, 1e4, -1e4, 1e30, -1e30]
    x = torch.tensor([e for e in extremes if abs(e) < top], dtype=dtype).requires_grad_()
    inputs = (x, torch.ones_like(x)) if isinstance(spec.arity, Gated) else (x,)
    y = module(*inputs)
    first = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]
    second = torch.autograd.grad(first, x, torch.ones_like(y))[0]
    use_eager(module.forms, eager=False)
    for result in (y, first, second):
        assert not torch.isnan(result).any()


@pytest.mark.parametrize("spec", ENTRIES, ids=lambda s: s.name)
def test_a_nan_is_passed_on(spec: Spec) -> None:
    exact = parameters(spec, {})
    assert torch.isnan(kernel_of(spec).value(torch.tensor([math.nan]), exact)).all()


def test_xielu_at_zero_and_infinity() -> None:
    module = build_activation("xielu")
    x = torch.tensor([0.0, -0.0, -math.inf, math.inf], requires_grad=True)
    y = module(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert y.tolist() == [0.0, 0.0, math.inf, math.inf]
    assert x.grad[:2].tolist() == [0.5, 0.5]
    assert x.grad[2].item() == pytest.approx(-0.3)
