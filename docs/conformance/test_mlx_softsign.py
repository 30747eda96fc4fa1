"""mlx.nn.softsign: the gradient 1/(1 + |x|)^2 for inputs of every size."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np


def test_the_gradient_is_right():
    sizes = np.logspace(-6, 18, 200)
    x = np.concatenate([-sizes, [0], sizes]).astype(np.float32)
    given = mx.array(x)
    (value,), (slope,) = mx.vjp(nn.softsign, [given], [mx.ones_like(given)])
    size = np.abs(x.astype(np.float64))
    np.testing.assert_allclose(np.array(slope, np.float64), 1 / (1 + size) ** 2, rtol=5e-7)
    np.testing.assert_allclose(np.array(value, np.float64), x / (1 + size), rtol=5e-7)
