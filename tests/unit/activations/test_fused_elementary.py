"""The functions of CPU kernels: their header is what is derived, their results are held to mpmath."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from stamm.activations.fused import build, coefficients

UNARY = ("exp", "tanh", "log", "log1p", "sin", "cos", "atan", "asin", "erf", "erfc", "abs")
BINARY = ("pow", "atan2")
DOUBLE = ("expm1", "phi2", "phi2_over", "exp_in_parts", "inverse")  # unary, of doubles only


def _loop(name: str, number: str, declared: str, call: str) -> str:
    return (
        f'extern "C" void {name}_{number}({declared}, {number}* to) {{\n'
        f"  using V = Vector<{number}>;\n"
        f"  for (int64_t k = 0; k < 64 / sizeof({number}); k += lanes<{number}>) {{\n"
        f"    const V found = {call};\n"
        "    std::memcpy(to + k, &found, sizeof(found));\n"
        "  }\n}\n"
    )


SOURCE = (
    """#include "pointwise.h"
using namespace stamm;
extern "C" void negative_zero(float* y) {
  for (int64_t k = 0; k < 16; k += lanes<float>) store(full<Vector<float>>(-0.0f), y + k);
}
"""
    + "".join(
        _loop(name, c, f"const {c}* x", f"{name}(read<V>(x + k))")
        for name in UNARY
        for c in ("float", "double")
    )
    + "".join(
        _loop(name, c, f"const {c}* x, const {c}* y", f"{name}(read<V>(x + k), read<V>(y + k))")
        for name in BINARY
        for c in ("float", "double")
    )
    + "".join(
        _loop(name, "double", "const double* x", f"{name}(read<V>(x + k))") for name in DOUBLE
    )
    + _loop(
        "phi2_sum",
        "double",
        "const double* x, const double* b, const double* a",
        "phi2_sum(read<V>(x + k), read<V>(b + k), read<V>(a + k))",
    )
)
needs_compiler = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)


def test_the_header_is_what_is_derived() -> None:
    assert coefficients._HEADER.read_text() == coefficients.header()


def _of(name: str, *taken: np.ndarray) -> np.ndarray:
    """A function of numbers, as many as a multiple of 16, by the vectors of CPU kernels."""
    found = np.empty_like(taken[0])
    number = "float" if found.dtype == np.float32 else "double"
    function = build.function(SOURCE, f"{name}_{number}")
    held = [*map(np.ascontiguousarray, taken), found]
    for start in range(0, found.nbytes, 64):
        function(*[ctypes.c_void_p(array.ctypes.data + start) for array in held])
    return found


def _exp(x: np.ndarray) -> np.ndarray:
    return _of("exp", x)


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "low", "high", "ulp"),
    [(np.float32, -87.0, 88.7, 1.0), (np.float64, -706.9, 709.7, 70.0)],
)
def test_results_are_within_what_the_polynomial_promises(
    dtype: type[np.floating], low: float, high: float, ulp: float
) -> None:
    """float64 here serves results that are stored in float32: 70 of its ulp are 1.3e-7 of theirs."""
    x = np.random.default_rng(0).uniform(low, high, 4096).astype(dtype)
    x[:2048] = np.linspace(-0.4, 0.4, 2048)
    found = _exp(x)
    with mpmath.workdps(40):
        worst = max(
            abs(mpmath.mpf(float(y)) - mpmath.exp(mpmath.mpf(float(at)))) / float(np.spacing(y))
            for at, y in zip(x, found, strict=True)
        )
    assert worst < ulp


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_are_reached(dtype: type[np.floating]) -> None:
    x = np.zeros(16, dtype=dtype)
    x[:6] = [np.inf, -np.inf, np.nan, 0.0, -0.0, np.finfo(dtype).min]
    assert np.array_equal(_exp(x)[:6], [np.inf, 0.0, np.nan, 1.0, 1.0, 0.0], equal_nan=True)
    least = np.finfo(np.float32).smallest_subnormal  # float64, too, is stored in float32
    x[:] = np.log(least.astype(np.float64)) + 0.1  # above it by a tenth: rounds to it
    assert set(_exp(x).astype(np.float32)) == {least}


@needs_compiler
def test_a_constant_keeps_the_sign_of_zero() -> None:
    held = np.ones(16, dtype=np.float32)
    build.function(SOURCE, "negative_zero")(ctypes.c_void_p(held.ctypes.data))
    assert np.signbit(held).all()
    assert (held == 0).all()


def _spread(low: float, high: float) -> np.ndarray:
    """Numbers of both signs whose magnitudes are spread evenly over powers of two."""
    random = np.random.default_rng(3)
    size = np.exp2(random.uniform(np.log2(low), np.log2(high), 512))
    return size * random.choice([-1.0, 1.0], 512)


def _even(low: float, high: float) -> np.ndarray:
    return np.random.default_rng(4).uniform(low, high, 1024)


def _turns(most: int) -> np.ndarray:
    """Near multiples of pi/2, where sine or cosine is near 0."""
    return np.random.default_rng(5).integers(1, most, 512) * (np.pi / 2)


RANGES: list[tuple[str, np.ndarray]] = [
    ("tanh", _even(-12, 12)),
    ("tanh", _spread(1e-37, 1.0)),
    ("log", abs(_spread(1e-44, 3e38))),
    ("log", _even(0.5, 2.0)),
    ("log1p", abs(_spread(1e-37, 3e38))),
    ("log1p", abs(_spread(1e38, 3.4e38))),
    ("log1p", _even(-0.9999, 2.0)),
    ("log1p", _spread(1e-37, 0.5)),
    ("sin", _even(-30, 30)),
    ("sin", _turns(20_000)),
    ("sin", _spread(1e-37, 1e6)),
    ("cos", _even(-30, 30)),
    ("cos", _turns(20_000)),
    ("cos", _spread(1e-37, 1e6)),
    ("atan", _even(-3, 3)),
    ("atan", _spread(1e-37, 3e37)),
    ("asin", _even(-1, 1)),
    ("asin", _spread(1e-37, 1.0)),
    ("erf", _even(-5, 5)),
    ("erf", _spread(1e-37, 1.0)),
    ("erfc", _even(-5, 10)),
    ("erfc", _spread(1e-37, 1.0)),
]


def _worst(
    exact: Callable[..., Any], found: np.ndarray, *taken: np.ndarray
) -> tuple[float, tuple[float, ...]]:
    """The largest relative error, and where. Below the normal float32 numbers, of the least one."""
    worst = (0.0, (0.0,))
    with mpmath.workdps(50):
        for y, *at in zip(found, *taken, strict=True):
            value = exact(*(mpmath.mpf(float(each)) for each in at))
            scale = max(abs(value), mpmath.mpf(2) ** -126)
            worst = max(worst, (float(abs(mpmath.mpf(float(y)) - value) / scale), tuple(at)))
    return worst


@needs_compiler
@pytest.mark.parametrize(("name", "x"), RANGES, ids=[name for name, _ in RANGES])
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3 * 2.0**-23), (np.float64, 1e-13)])
def test_functions_are_close_to_mpmath(
    name: str, x: np.ndarray, dtype: type[np.floating], error: float
) -> None:
    """3 * 2**-23 is between 1.5 and 3 units in the last place, wherever the value lies."""
    x = x.astype(dtype)
    found, at = _worst(getattr(mpmath, name), _of(name, x), x)
    assert found < error, at


@needs_compiler
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2.0**-23), (np.float64, 1e-13)])
def test_powers_and_angles_are_close_to_mpmath(dtype: type[np.floating], error: float) -> None:
    base, exponent = abs(_spread(1e-6, 1e6)).astype(dtype), _even(-6, 6)[:512].astype(dtype)
    assert _worst(mpmath.power, _of("pow", base, exponent), base, exponent)[0] < error
    y, x = _spread(1e-6, 1e6).astype(dtype), np.roll(_spread(1e-6, 1e6), 77).astype(dtype)
    assert _worst(mpmath.atan2, _of("atan2", y, x), y, x)[0] < 3 * error


def _phi2(u: Any) -> Any:
    return mpmath.expm1(u) - u


_EXACT: dict[str, Callable[..., Any]] = {
    "expm1": mpmath.expm1,
    "phi2": _phi2,
    "phi2_over": lambda u: _phi2(u) / u,
    "exp_in_parts": mpmath.exp,
    "inverse": lambda u: 1 / u,
}
_EVERYWHERE = (_even(-80, 80), _even(-1, 1), _spread(1e-37, 1.0))


@needs_compiler
@pytest.mark.parametrize("name", DOUBLE)
def test_functions_of_one_exponential_are_close_to_mpmath(name: str) -> None:
    """They serve results that are stored in float32, whose rounding error is 6e-8."""
    for x in _EVERYWHERE if name != "inverse" else (_even(1, 2),):
        found, at = _worst(_EXACT[name], _of(name, x), x)
        assert found < (1e-12 if name == "inverse" else 1e-13), at


@needs_compiler
def test_functions_of_one_exponential_keep_zeros_and_ends() -> None:
    x = np.resize(np.array([0.0, -0.0, np.inf, -np.inf, np.nan]), 16)
    wanted = {
        "expm1": [0.0, -0.0, np.inf, -1.0, np.nan],
        "exp_in_parts": [1.0, 1.0, np.inf, 0.0, np.nan],
        "phi2_over": [0.0, -0.0, np.nan, -1.0, np.nan],
    }
    for name in ("expm1", "exp_in_parts"):
        _same(_of(name, x)[:5], np.array(wanted[name]), 1e-15)
    _same(_of("phi2_over", x)[:2], np.array(wanted["phi2_over"][:2]), 0.0)
    _same(_of("phi2", x)[:2], np.zeros(2), 0.0)


@needs_compiler
def test_a_sum_with_phi2_is_the_product_that_keeps_the_sign_of_zero() -> None:
    x, b, a = (_even(-1, 0)[:512], _even(-3, 3)[:512], _even(-50, 50)[:512])
    x[:8] = [0.0, -0.0] * 4
    b[:8], a[:8] = np.repeat([0.5, -0.5], 4), [1, 1, -1, -1] * 2
    found = _of("phi2_sum", x, b, a)
    assert np.signbit(found[:8]).tolist() == np.signbit(x[:8] * b[:8]).tolist()
    assert not found[:8].any()
    with mpmath.workdps(40):
        for y, u, slope, factor in zip(found, x, b, a, strict=True):
            terms = mpmath.mpf(slope) * mpmath.mpf(u), mpmath.mpf(factor) * _phi2(mpmath.mpf(u))
            assert abs(mpmath.mpf(y) - sum(terms)) <= 2e-14 * sum(map(abs, terms))


ENDS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30)


def _same(found: np.ndarray, wanted: np.ndarray, within: float) -> None:
    """Equal where a value is 0, infinite or not a number, with its sign; elsewhere close."""
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    known = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(found[known]), np.signbit(wanted[known]))
    sharp = known & ((wanted == 0) | np.isinf(wanted))
    assert np.array_equal(found[sharp], wanted[sharp])
    rest = known & ~sharp
    assert np.allclose(found[rest], wanted[rest], rtol=within, atol=0)


@needs_compiler
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_are_those_of_torch(name: str, dtype: type[np.floating]) -> None:
    limits = np.finfo(dtype)
    ends = np.array([*ENDS, limits.smallest_normal, limits.max, limits.min], dtype=dtype)
    x = np.resize(ends, 32)  # whole vectors
    _same(_of(name, x), getattr(torch, name)(torch.from_numpy(x)).numpy(), 1e-6)


@needs_compiler
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_of_pairs_are_those_of_torch(name: str, dtype: type[np.floating]) -> None:
    x, y = (t.ravel().astype(dtype) for t in np.meshgrid([*ENDS, 1e-30], [*ENDS, 1e-30]))
    function = getattr(torch, name)
    with np.errstate(all="ignore"):
        _same(_of(name, x, y), function(torch.from_numpy(x), torch.from_numpy(y)).numpy(), 1e-6)


@needs_compiler
def test_far_angles_are_reduced() -> None:
    """Beyond what products in parts can reduce."""
    x = np.array([1e5, -1e8, 1e15, 3e30] * 4)
    for dtype in (np.float32, np.float64):
        for name in ("sin", "cos"):
            at = x.astype(dtype)
            assert _worst(getattr(mpmath, name), _of(name, at), at)[0] < 1e-6
