"""mlx.nn.elu, celu and selu: gradients of large inputs, values and gradients near 0."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

SCALE, ALPHA = 1.0507, 1.67326  # as mlx.nn.selu has them


def both(function, x):
    given = mx.array(x.astype(np.float32))
    (value,), (slope,) = mx.vjp(function, [given], [mx.ones_like(given)])
    return np.array(value, np.float64), np.array(slope, np.float64)


def check(function, scale, alpha):
    sizes = np.logspace(-30, 37, 300)
    x = np.concatenate([-sizes, sizes]).astype(np.float32).astype(np.float64)
    value, slope = both(function, x)
    np.testing.assert_allclose(
        value, scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), rtol=1e-6
    )
    near = x > -20  # below it exp of MLX is itself some units off
    true = scale * np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0)))
    np.testing.assert_allclose(slope[near], true[near], rtol=3e-6)
    assert np.isfinite(slope).all()


def test_elu():
    check(nn.elu, 1, 1)


def test_celu():
    check(nn.celu, 1, 1)


def test_selu():
    check(nn.selu, SCALE, ALPHA)


def test_the_gradient_at_zero():
    for function, slope in ((nn.elu, 1), (nn.celu, 1), (nn.selu, SCALE * ALPHA)):
        assert abs(both(function, np.zeros(1))[1][0] - slope) < 1e-6
