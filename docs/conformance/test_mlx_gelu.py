"""mlx.nn.gelu, gelu_approx and hardswish: finite values and gradients for large inputs."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

DTYPES = ((mx.float32, 38.4), (mx.bfloat16, 38.4), (mx.float16, 4.8))


@pytest.mark.parametrize("name", ["gelu", "gelu_approx", "hardswish"])
@pytest.mark.parametrize(("dtype", "end"), DTYPES)
def test_large_inputs_are_kept_and_their_gradient_is_one(name, dtype, end):
    x = mx.array(np.logspace(1.01, end, 100).astype(np.float32)).astype(dtype)
    (value,), (slope,) = mx.vjp(getattr(nn, name), [x], [mx.ones_like(x)])
    given, value, slope = (np.array(a.astype(mx.float32)) for a in (x, value, slope))
    np.testing.assert_array_equal(value, given)
    np.testing.assert_allclose(slope, 1, atol=2e-2)


def test_moderate_inputs_keep_their_values():
    x = np.linspace(-9, 9, 1001)
    given = mx.array(x.astype(np.float32))
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(np.array(nn.gelu_approx(given)), tanh, rtol=1e-5, atol=2e-6)
    hard = x * np.clip(x + 3, 0, 6) / 6
    np.testing.assert_allclose(np.array(nn.hardswish(given)), hard, rtol=1e-5, atol=2e-6)
