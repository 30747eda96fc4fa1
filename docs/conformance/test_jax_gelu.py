"""jax.nn.gelu by tanh: finite gradients for large inputs."""

import jax
import jax.numpy as jnp
import numpy as np


def test_the_gradient_of_large_inputs_is_one_or_zero():
    for dtype, end in ((jnp.float32, 38), (jnp.bfloat16, 38), (jnp.float16, 4.8)):
        sizes = np.logspace(1.01, end, 100)
        x = jnp.asarray(np.concatenate([-sizes, sizes]), dtype)
        slope = jax.grad(lambda x: jax.nn.gelu(x).astype(jnp.float32).sum())(x)
        np.testing.assert_array_equal(np.asarray(slope, np.float32), np.asarray(x > 0, np.float32))


def test_moderate_inputs_keep_their_values():
    x = np.linspace(-9, 9, 1001)
    true = x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(jax.nn.gelu(jnp.asarray(x, jnp.float32)), true, rtol=1e-5, atol=2e-6)
