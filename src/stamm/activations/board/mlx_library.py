"""MLX: the functions of mlx.nn, and arrays of emitted MLX modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamm.activations.board.library import GATED, CompiledTogether, LibraryFunction
from stamm.base.errors import RunError


def mlx_modules() -> tuple[Any, Any]:
    """The modules mlx.core and mlx.nn.

    Raises   RunError when MLX is missing or cannot be loaded.
    """
    try:
        import mlx.core as mx
        import mlx.nn as nn
    except ImportError as error:
        raise RunError(
            f"mlx cannot be imported: {error}",
            fix="Run: pip install mlx; on Linux, 'mlx[cpu]'",
        ) from None
    return mx, nn


def to_mlx(tensor: Tensor) -> Any:
    """The tensor as an array, bit by bit."""
    mx, _ = mlx_modules()
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def from_mlx(array: Any) -> Tensor:
    """The array as a tensor, bit by bit."""
    mx, _ = mlx_modules()
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


@dataclass(frozen=True)
class MlxLibrary:
    """mlx.nn with its compiler disabled, unless compiled."""

    version: str

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each function with its vector-Jacobian product."""
        functions = _functions()
        plain = [name for entry, name, *_ in functions if entry not in GATED]
        graph = CompiledTogether(
            _compiled([call for entry, _, call, _ in functions if entry not in GATED])
        )
        return [
            LibraryFunction(
                entry,
                name,
                _eager(lambda *given, call=call: [call(*given)], 0),
                _eager(_pair(call), 1),
                graph.of(plain.index(name)) if name in plain else None,
                remark=remark,
            )
            for entry, name, call, remark in functions
        ]


def _compiled(
    calls: Sequence[Callable[[Any], Any]],
) -> Callable[[Tensor], Sequence[Sequence[Tensor]]]:
    mx, _ = mlx_modules()
    pairs = [_pair(call) for call in calls]
    run = mx.compile(lambda x: [result for pair in pairs for result in pair(x)])

    def values_and_slopes(x: Tensor) -> Sequence[Sequence[Tensor]]:
        results = [from_mlx(result) for result in run(to_mlx(x))]
        return [results[k : k + 2] for k in range(0, len(results), 2)]

    return values_and_slopes


def _pair(call: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """Value and slopes of a function."""
    mx, _ = mlx_modules()

    def both(*inputs: Any) -> Sequence[Any]:
        outputs, slopes = mx.vjp(call, list(inputs), [mx.ones_like(inputs[0])])
        return [*outputs, *slopes]

    return both


def _run(call: Callable[..., Sequence[Any]]) -> Callable[..., list[Tensor]]:
    return lambda *inputs: [from_mlx(result) for result in call(*map(to_mlx, inputs))]


def _eager(call: Callable[..., Sequence[Any]], start: int) -> Callable[..., Any]:
    """Results of `call`: the first, or those from the second on.

    MLX's compiler, which mlx.nn applies to each of its functions, is disabled.
    """
    mx, _ = mlx_modules()

    def without_compiler(*inputs: Tensor) -> Any:
        mx.disable_compile()
        try:
            results = _run(call)(*inputs)
        finally:
            mx.enable_compile()
        return results[1:] if start else results[0]

    return without_compiler


def mlx_library() -> MlxLibrary:
    """The installed MLX.

    Raises   RunError when it is missing.
    """
    mlx_modules()
    return MlxLibrary(version=metadata.version("mlx"))


def _functions() -> list[tuple[str, str, Callable[..., Any], str]]:
    """Entry, name, function, and what differs by definition."""
    mx, nn = mlx_modules()
    same = {
        "relu": "relu", "relu2": "relu2", "relu6": "relu6", "leaky_relu": "leaky_relu",
        "hard_shrink": "hard_shrink", "soft_shrink": "softshrink", "hard_tanh": "hard_tanh",
        "hard_swish": "hardswish", "elu": "elu", "celu": "celu", "silu": "silu", "gelu": "gelu",
        "gelu_tanh": "gelu_approx", "quick_gelu": "gelu_fast_approx", "mish": "mish",
        "softplus": "softplus", "log_sigmoid": "log_sigmoid", "softsign": "softsign",
        "sigmoid": "sigmoid", "tanh": "tanh",
    }  # fmt: skip
    return [
        *((entry, f"nn.{name}", getattr(nn, name), "") for entry, name in same.items()),
        ("selu", "nn.selu", nn.selu, "its constants have six digits"),
        ("prelu", "nn.prelu", lambda x: nn.prelu(x, mx.array(0.25, dtype=x.dtype)), ""),
        ("glu", "nn.glu", lambda gate, up: nn.glu(mx.concatenate([up, gate]), 0), ""),
        ("modulus", "abs", mx.abs, ""),
        ("square", "square", mx.square, ""),
        ("arctan", "arctan", mx.arctan, ""),
        ("erf", "erf", mx.erf, ""),
        ("sine", "sin", mx.sin, ""),
        ("cosine", "cos", mx.cos, ""),
    ]
