"""The exponential of CPU kernels: its header is what is derived, and its results are held to mpmath."""

from __future__ import annotations

import ctypes

import mpmath
import numpy as np
import pytest

from stamm.activations.fused import build, exponential

SOURCE = """#include "pointwise.h"
using namespace stamm;
template <class C>
static void each(const C* x, C* y) {
  Vector<C> held;
  std::memcpy(&held, x, 64);
  held = exp(held);
  std::memcpy(y, &held, 64);
}
extern "C" void float32(const float* x, float* y) { each(x, y); }
extern "C" void float64(const double* x, double* y) { each(x, y); }
extern "C" void negative_zero(float* y) {
  Vector<float> held = full<Vector<float>>(-0.0f);
  std::memcpy(y, &held, 64);
}
"""
needs_compiler = pytest.mark.skipif(
    build.unavailable() is not None, reason=f"no CPU kernels: {build.unavailable()}"
)


def test_the_header_is_what_is_derived() -> None:
    assert exponential._HEADER.read_text() == exponential.header()


def _exp(x: np.ndarray) -> np.ndarray:
    """exp of a multiple of 16 numbers, by the vectors of CPU kernels."""
    function = build.function(SOURCE, x.dtype.name)
    x, found = np.ascontiguousarray(x), np.empty_like(x)
    lanes = 64 // x.itemsize
    for start in range(0, x.size, lanes):
        place = start * x.itemsize
        function(ctypes.c_void_p(x.ctypes.data + place), ctypes.c_void_p(found.ctypes.data + place))
    return found


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "low", "high", "ulp"),
    [(np.float32, -87.0, 88.7, 1.0), (np.float64, -708.0, 709.7, 70.0)],
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
    least = np.finfo(dtype).smallest_subnormal
    x[:] = np.log(least.astype(np.float64)) + 0.1  # above it by a tenth: rounds to it
    assert set(_exp(x)) == {least}


@needs_compiler
def test_a_constant_keeps_the_sign_of_zero() -> None:
    held = np.ones(16, dtype=np.float32)
    build.function(SOURCE, "negative_zero")(ctypes.c_void_p(held.ctypes.data))
    assert np.signbit(held).all()
    assert (held == 0).all()
