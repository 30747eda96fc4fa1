"""jax.nn.squareplus: values and gradients for large and for negative inputs."""

import jax
import jax.numpy as jnp
import numpy as np


def sides():
    sizes = np.logspace(-6, 37, 400)
    return np.concatenate([-sizes, sizes]).astype(np.float32)


def exact(x):
    x = x.astype(np.longdouble)
    root = np.sqrt(x * x + 4)
    value = np.where(x < 0, 2 / (root + np.abs(x)), (x + root) / 2)
    return value.astype(np.float64), (value / root).astype(np.float64)


def test_values_are_within_a_few_units():
    value = jax.nn.squareplus(jnp.asarray(sides()))
    np.testing.assert_allclose(np.asarray(value, np.float64), exact(sides())[0], rtol=6e-7)


def test_gradients_are_finite_and_right():
    slope = jax.grad(lambda x: jax.nn.squareplus(x).sum())(jnp.asarray(sides()))
    np.testing.assert_allclose(
        np.asarray(slope, np.float64), exact(sides())[1], rtol=2e-6, atol=1e-37
    )


def test_zero_and_another_smoothness():
    value, slope = jax.value_and_grad(jax.nn.squareplus)(0.0)
    assert (value, slope) == (1.0, 0.5)
    assert jax.nn.squareplus(0.0, 0) == 0 and jax.nn.squareplus(3.0, 0) == 3
    half = jax.nn.squareplus(jnp.asarray([-200.0, 200.0], jnp.float16))
    np.testing.assert_allclose(np.asarray(half, np.float64), [0.005, 200.005], rtol=1e-2)
