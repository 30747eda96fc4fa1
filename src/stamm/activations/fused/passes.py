"""Passes over memory of an activation, as graphs: forward and backward, plain and gated.

A gated pass multiplies by h(up) where the spec has such a factor. Backward passes
return the gradient of every input and, in the same pass, the contribution of each element to the
gradient of every trainable parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused.graph import Graph, Node, Traced
from stamm.base.errors import ConfigError

Fixed = tuple[float | None, ...]
Numbers = list[Traced | float]
PassName = Literal["forward", "backward", "gated_forward", "gated_backward"]
PLAIN: tuple[PassName, ...] = ("forward", "backward")
GATED: tuple[PassName, ...] = ("gated_forward", "gated_backward")


def graph_of(name: PassName, kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    """The graph of one pass.

    name     forward          x -> f(x)
             backward         weight, x -> weight f'(x); sums of weight df/dp
             gated_forward    gate, up -> f(gate) h(up)
             gated_backward   weight, gate, up -> weight h(up) f'(gate), weight f(gate) h'(up);
                              sums of weight h(up) df/dp
    fixed    per parameter of the spec its constant value, or None where it is read at run time: none
             of them, the trainable ones, or all
    dtype    the computing dtype: float32 or float64
    Raises   ConfigError when the kernel calls a torch function that has no fused form, or for
             another choice of parameters that are read.
    """
    return _MAKERS[name](kernel, fixed, dtype)


def _started(inputs: int, fixed: Fixed, dtype: torch.dtype) -> tuple[Graph, list[Traced], Numbers]:
    graph = Graph(dtype=dtype, inputs=inputs)
    read = [graph.add(Node("input", number=place)) for place in range(inputs)]
    trainable = iter(range(len(fixed)))
    parameters: Numbers = [
        graph.add(Node("parameter", number=next(trainable))) if value is None else value
        for value in fixed
    ]
    return graph, read, parameters


def _ended(graph: Graph, outputs: list[Traced | float], sums: list[Traced | float]) -> Graph:
    graph.outputs = tuple(graph.taken(value).place for value in outputs)
    graph.sums = tuple(graph.taken(value).place for value in sums)
    return graph


def _forward(kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    graph, (x,), parameters = _started(1, fixed, dtype)
    return _ended(graph, [_called(kernel.value, x, parameters)], [])


def _backward(kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    graph, (weight, x), parameters = _started(2, fixed, dtype)
    slope, by_parameter = _slopes(kernel, fixed, x, parameters)
    return _ended(graph, [weight * slope], [weight * each for each in by_parameter])


def _gated_forward(kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    graph, (gate, up), parameters = _started(2, fixed, dtype)
    factor = up if kernel.up is None else _called(kernel.up.value, up, parameters)
    return _ended(graph, [_called(kernel.value, gate, parameters) * factor], [])


def _gated_backward(kernel: Kernel, fixed: Fixed, dtype: torch.dtype) -> Graph:
    graph, (weight, gate, up), parameters = _started(3, fixed, dtype)
    value = _called(kernel.value, gate, parameters)
    slope, by_parameter = _slopes(kernel, fixed, gate, parameters)
    if kernel.up is None:
        scaled, into_up = weight * up, weight * value
    else:
        (up_slope,) = _called(kernel.up.slopes, up, parameters)
        scaled = weight * _called(kernel.up.value, up, parameters)
        into_up = weight * value * up_slope
    return _ended(graph, [scaled * slope, into_up], [scaled * each for each in by_parameter])


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
    return function(x, tuple(parameters))


_MAKERS: dict[str, Callable[[Kernel, Fixed, torch.dtype], Graph]] = {
    "forward": _forward,
    "backward": _backward,
    "gated_forward": _gated_forward,
    "gated_backward": _gated_backward,
}
