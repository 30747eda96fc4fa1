"""jax.nn.sparse_plus: finite gradients for large inputs."""

import jax
import jax.numpy as jnp
import numpy as np


def test_the_gradient_is_finite_and_right():
    for dtype, end in ((jnp.float32, 38), (jnp.bfloat16, 38), (jnp.float16, 4.8)):
        sizes = np.logspace(-3, end, 200)
        x = jnp.asarray(np.concatenate([-sizes, sizes]), dtype)
        slope = jax.grad(lambda x: jax.nn.sparse_plus(x).astype(jnp.float32).sum())(x)
        true = np.clip((np.asarray(x, np.float64) + 1) / 2, 0, 1)
        np.testing.assert_allclose(np.asarray(slope, np.float64), true, atol=5e-3)


def test_the_gradient_at_the_knots_is_that_of_both_sides():
    slope = jax.grad(lambda x: jax.nn.sparse_plus(x).sum())(jnp.array([-1.0, 1.0]))
    assert slope.tolist() == [0.0, 1.0]
