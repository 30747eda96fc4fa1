"""JAX: the functions of jax.nn and jax.numpy, and arrays of emitted JAX modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamm.activations.board.library import GATED, CompiledTogether, LibraryFunction
from stamm.base.extras import missing_library

_ROWS = 2**14


def jax_modules() -> tuple[Any, ModuleType]:
    """The modules jax and jax.numpy.

    Raises   RunError when jax is missing.
    """
    try:
        import jax
        import jax.numpy as jnp
    except ModuleNotFoundError as error:
        raise missing_library(error) or error from None
    return jax, jnp


def to_jax(tensor: Tensor) -> Any:
    """The tensor as an array, bit by bit."""
    _, jnp = jax_modules()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.view(torch.int16).numpy().view(jnp.bfloat16))
    return jnp.asarray(tensor.numpy())


def from_jax(array: Any) -> Tensor:
    """The array as a tensor, bit by bit."""
    held = np.array(array)
    if held.dtype.name == "bfloat16":
        return torch.from_numpy(held.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(held)


@dataclass(frozen=True)
class JaxLibrary:
    """jax.nn, without jit unless compiled."""

    version: str

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each function with its vector-Jacobian product."""
        functions = _functions()
        plain = [name for entry, name, _ in functions if entry not in GATED]
        graph = CompiledTogether(_compiled([c for entry, _, c in functions if entry not in GATED]))
        return [
            LibraryFunction(
                entry,
                name,
                lambda *inputs, call=call: _padded(lambda *given: [call(*given)], *inputs)[0],
                lambda *inputs, call=call: _padded(_pair(call), *inputs)[1:],
                graph.of(plain.index(name)) if name in plain else None,
            )
            for entry, name, call in functions
        ]


def _compiled(
    calls: Sequence[Callable[[Any], Any]],
) -> Callable[[Tensor], Sequence[Sequence[Tensor]]]:
    jax, _ = jax_modules()
    pairs = [_pair(call) for call in calls]
    run = jax.jit(lambda x: [result for pair in pairs for result in pair(x)])

    def values_and_slopes(x: Tensor) -> Sequence[Sequence[Tensor]]:
        results = [from_jax(result) for result in run(to_jax(x))]
        return [results[k : k + 2] for k in range(0, len(results), 2)]

    return values_and_slopes


def _pair(call: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """Value and slopes of a function."""
    jax, jnp = jax_modules()

    def both(*inputs: Any) -> Sequence[Any]:
        y, pulled = jax.vjp(call, *inputs)
        return [y, *pulled(jnp.ones_like(y))]

    return both


def _padded(call: Callable[..., Sequence[Any]], *inputs: Tensor) -> list[Tensor]:
    """`call` at inputs whose count is filled up: JAX compiles each operation for each shape."""
    count = len(inputs[0])
    extra = -count % _ROWS
    filled = [torch.cat([x, x[-1:].expand(extra)]) for x in inputs]
    return [from_jax(result)[:count] for result in call(*map(to_jax, filled))]


def jax_library() -> JaxLibrary:
    """The installed JAX.

    Raises   RunError when it is missing.
    """
    jax, _ = jax_modules()
    return JaxLibrary(version=str(jax.__version__))


def _functions() -> list[tuple[str, str, Callable[..., Any]]]:
    """Entry, name and function."""
    jax, jnp = jax_modules()
    nn = jax.nn
    same = {
        "identity": "identity", "relu": "relu", "relu6": "relu6", "leaky_relu": "leaky_relu",
        "hard_tanh": "hard_tanh", "hard_sigmoid": "hard_sigmoid", "hard_swish": "hard_swish",
        "elu": "elu", "celu": "celu", "selu": "selu", "silu": "silu", "mish": "mish",
        "softplus": "softplus", "log_sigmoid": "log_sigmoid", "softsign": "soft_sign",
        "squareplus": "squareplus", "smelu": "sparse_plus", "sigmoid": "sigmoid", "relu2": "relu2",
    }  # fmt: skip
    functions = [
        (entry, f"nn.{name}", getattr(nn, name))
        for entry, name in same.items()
        if hasattr(nn, name)
    ]
    return [
        *functions,
        ("gelu", "nn.gelu(approximate=False)", lambda x: nn.gelu(x, approximate=False)),
        ("gelu_tanh", "nn.gelu", nn.gelu),
        ("glu", "nn.glu", lambda gate, up: nn.glu(jnp.concatenate([up, gate]), 0)),
        ("modulus", "numpy.abs", jnp.abs),
        ("square", "numpy.square", jnp.square),
        ("tanh", "numpy.tanh", jnp.tanh),
        ("arctan", "numpy.arctan", jnp.arctan),
        ("sine", "numpy.sin", jnp.sin),
        ("cosine", "numpy.cos", jnp.cos),
        ("erf", "scipy.special.erf", jax.scipy.special.erf),
    ]
