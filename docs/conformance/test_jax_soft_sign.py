"""jax.nn.soft_sign: the gradient 1/(1 + |x|)^2 for inputs of every size."""

import jax
import jax.numpy as jnp
import numpy as np


def test_the_gradient_is_right():
    sizes = np.logspace(-6, 18, 200)
    x = np.concatenate([-sizes, [0], sizes]).astype(np.float32)
    slope = jax.grad(lambda x: jax.nn.soft_sign(x).sum())(jnp.asarray(x))
    true = 1 / (1 + np.abs(x.astype(np.float64))) ** 2
    np.testing.assert_allclose(np.asarray(slope, np.float64), true, rtol=5e-7)


def test_values_and_second_derivatives():
    x = np.linspace(-5, 5, 41)
    np.testing.assert_allclose(
        jax.nn.soft_sign(jnp.asarray(x, jnp.float32)), x / (1 + abs(x)), rtol=1e-6
    )
    assert jax.grad(jax.grad(jax.nn.soft_sign))(1.0) == -0.25
    assert jax.nn.soft_sign(jnp.asarray([3])).tolist() == [0.75]
