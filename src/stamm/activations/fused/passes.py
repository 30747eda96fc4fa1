"""Passes over memory of an activation, as graphs: forward, backward and curvature, plain and gated.

A gated pass multiplies by h(up) where the spec has such a factor. Backward passes
return the gradient of every input and, in the same pass, the contribution of each element to the
gradient of every trainable parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from stamm.activations import primitives
from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused.graph import Graph, Node, Traced
from stamm.base.errors import ConfigError

Fixed = tuple[float | None, ...]
Numbers = list[Traced | float]
PassName = Literal[
    "forward", "backward", "curvature", "gated_forward", "gated_backward", "gated_curvature"
]
PLAIN: tuple[PassName, ...] = ("forward", "backward")
GATED: tuple[PassName, ...] = ("gated_forward", "gated_backward")


def graph_of(
    name: PassName, kernel: Kernel, fixed: Fixed, dtype: torch.dtype, *, whole: bool = False
) -> Graph:
    """The graph of one pass.

    name     forward          x -> f(x)
             backward         weight, x -> weight f'(x); sums of weight df/dp
             curvature        x -> f''(x); with a surrogate of f', its derivative
             gated_forward    gate, up -> f(gate) h(up)
             gated_backward   weight, gate, up -> weight h(up) f'(gate), weight f(gate) h'(up);
                              sums of weight h(up) df/dp
             gated_curvature  gate, up -> f''(gate) h(up)
    fixed    per parameter of the spec its constant value, or None where it is read at run time: none
             of them, the trainable ones, or all
    dtype    the computing dtype: float32 or float64
    whole    whether functions of `graph.PRIMITIVES` are operations of the graph
    Raises   ConfigError when the kernel calls a torch function that has no fused form, or for
             another choice of parameters that are read.
    """
    graph = Graph(dtype=dtype, inputs=_INPUTS[name], primitives=whole)
    return _MAKERS[name](graph, kernel, fixed)


def _started(graph: Graph, fixed: Fixed) -> tuple[list[Traced], Numbers]:
    read = [graph.add(Node("input", number=index)) for index in range(graph.inputs)]
    trainable = iter(range(len(fixed)))
    parameters: Numbers = [
        graph.add(Node("parameter", number=next(trainable))) if value is None else value
        for value in fixed
    ]
    return read, parameters


def _ended(graph: Graph, outputs: list[Traced | float], sums: list[Traced | float]) -> Graph:
    graph.outputs = tuple(graph.taken(value).place for value in outputs)
    graph.sums = tuple(graph.taken(value).place for value in sums)
    return graph


def _forward(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (x,), parameters = _started(graph, fixed)
    return _ended(graph, [_called(kernel.value, x, parameters)], [])


def _backward(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (weight, x), parameters = _started(graph, fixed)
    slope, by_parameter = _slopes(kernel, fixed, x, parameters)
    return _ended(graph, [weight * slope], [weight * partial for partial in by_parameter])


def _curvature(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (x,), parameters = _started(graph, fixed)
    return _ended(graph, [_called(kernel.curvatures, x, parameters)[0]], [])


def _gated_forward(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (gate, up), parameters = _started(graph, fixed)
    factor = up if kernel.up is None else _called(kernel.up.value, up, parameters)
    return _ended(graph, [_called(kernel.value, gate, parameters) * factor], [])


def _gated_curvature(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (gate, up), parameters = _started(graph, fixed)
    factor = up if kernel.up is None else _called(kernel.up.value, up, parameters)
    return _ended(graph, [_called(kernel.curvatures, gate, parameters)[0] * factor], [])


def _gated_backward(graph: Graph, kernel: Kernel, fixed: Fixed) -> Graph:
    (weight, gate, up), parameters = _started(graph, fixed)
    value = _called(kernel.value, gate, parameters)
    slope, by_parameter = _slopes(kernel, fixed, gate, parameters)
    if kernel.up is None:
        scaled, into_up = weight * up, weight * value
    else:
        (up_slope,) = _called(kernel.up.slopes, up, parameters)
        scaled = weight * _called(kernel.up.value, up, parameters)
        into_up = weight * value * up_slope
    return _ended(graph, [scaled * slope, into_up], [scaled * partial for partial in by_parameter])


def _slopes(
    kernel: Kernel, fixed: Fixed, x: Traced, parameters: Numbers
) -> tuple[Traced, list[Traced]]:
    """f' and, where parameters are read at run time, the slope in each trainable one."""
    slope, *by_parameter = _called(kernel.slopes, x, parameters)
    read = fixed.count(None)
    if read not in (0, len(by_parameter), len(fixed)):
        raise ConfigError(
            f"{read} parameters are read at run time, and {len(by_parameter)} have slopes",
            fix="Read none at run time, the trainable ones, or all",
        )
    return slope, by_parameter if read else []


def _called(function: Callable[..., Any], x: Traced, parameters: Numbers) -> Any:
    # The functions are typed for tensors; a tracer has the same operations.
    if x.graph.primitives and isinstance(function, FunctionType):
        function = FunctionType(
            function.__code__, {**function.__globals__, "primitives": _RECORDED},
            function.__name__, function.__defaults__, function.__closure__,
        )  # fmt: skip
    return function(x, tuple(parameters))


def _recorded(name: str) -> Callable[[Traced], Traced]:
    return lambda u: u.graph.add(Node(name, (u.place,)))


def _logistic_pair(u: Traced) -> tuple[Traced, Traced]:
    """`primitives.logistic_pair`, whose divisor is between 1 and 2."""
    negative: Any = u < 0.0
    small: Any = torch.exp(-torch.abs(u))  # type: ignore[arg-type]
    large: Any = _recorded("inverse")(1.0 + small)
    rest: Any = small * large
    return torch.where(negative, rest, large), torch.where(negative, large, rest)  # type: ignore[return-value]


# What generated kernels call as `primitives.NAME`: some are one operation of a graph.
_RECORDED = SimpleNamespace(**{
    **{name: getattr(primitives, name) for name in primitives.__all__},
    "logistic_pair": _logistic_pair,
    "expm1": _recorded("expm1"),
    **{name: _recorded("phi2") for name in ("phi2", "phi2_negative", "phi2_positive")},
    **{name: _recorded("phi2_over") for name in ("phi2_over_negative", "phi2_over_positive")},
})  # fmt: skip
_INPUTS: dict[PassName, int] = {
    "forward": 1, "backward": 2, "curvature": 1,
    "gated_forward": 2, "gated_backward": 3, "gated_curvature": 2,
}  # fmt: skip
_MAKERS: dict[str, Callable[[Graph, Kernel, Fixed], Graph]] = {
    "forward": _forward,
    "backward": _backward,
    "curvature": _curvature,
    "gated_forward": _gated_forward,
    "gated_backward": _gated_backward,
    "gated_curvature": _gated_curvature,
}


STORED = (torch.float32, torch.bfloat16, torch.float16)  # what passes read and write


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """The tensors of a pass as matrices of one shape, without a copy.

    by_column   whether each column has its own parameters
    flat        whether everything is one row, without steps
    """

    read: list[Tensor]
    written: list[Tensor]
    rows: int
    columns: int
    by_column: bool
    flat: bool


def arranged(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Matrices:
    """Inputs and outputs (..., C) as (rows, C), or as one row where no step lies between them.

    Raises   ConfigError for an output whose leading axes cannot be joined: it cannot be written;
             for a parameter of other than one value or C
    """
    for parameter in parameters:
        check_neurons(parameter, inputs[0])
    by_column = any(p.numel() > 1 for p in parameters)
    flat = not by_column and all(t.is_contiguous() for t in (*inputs, *outputs))
    first = inputs[0]
    columns = first.numel() if flat else first.shape[-1] if first.dim() else 1
    return Matrices(
        read=[t.reshape(-1, columns) for t in inputs],
        written=[_matrix(t, columns) for t in outputs],
        rows=first.numel() // columns,
        columns=columns,
        by_column=by_column,
        flat=flat,
    )


def check_neurons(parameter: Tensor, x: Tensor) -> None:
    """Check that a parameter has one value, or one for each of the C neurons of x (..., C)."""
    if parameter.numel() != 1 and (x.dim() == 0 or parameter.shape != x.shape[-1:]):
        raise ConfigError(
            f"the parameter has {parameter.numel()} values and the input {size_text(x)}",
            fix="Build the activation for as many neurons as its input has in the last axis",
        )


def size_text(tensor: Tensor) -> str:
    """Its shape and dtype, for a message."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def shaped(
    sums: Iterable[Tensor], parameters: Sequence[Tensor], added: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """One sum for each parameter, shaped and typed like it, in memory of its own.

    added   what adds up a row, of which a parameter with one number needs a single sum
    """
    return [
        (s if s.numel() == p.numel() else added(s)).to(p.dtype, copy=True).reshape(p.shape)
        for s, p in zip(sums, parameters, strict=True)
    ]


def _matrix(tensor: Tensor, columns: int) -> Tensor:
    """The same memory as (rows, C)."""
    try:
        return tensor.view(-1, columns)
    except RuntimeError as error:
        raise ConfigError(
            f"an output of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not a matrix",
            fix="Give one that can be viewed as rows and columns",
        ) from error
