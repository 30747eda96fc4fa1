"""Graph of what a kernel's torch functions compute, recorded as a list of scalar operations.

The functions are called once with tracers for tensors. Each torch function that a tracer receives
is recorded instead of computed, so every backend translates the formulas that eager code runs:
no formula is written twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stamm.base.errors import ConfigError

# One number in, one number out; the names are those of torch and of C.
_ELEMENTARY = frozenset({
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "asin", "tanh", "atan", "erf", "erfc",
    "abs", "sinh", "cosh", "asinh", "acosh",
})  # fmt: skip
# Operations of graphs with `primitives`, as stamm.activations.primitives has them.
#   phi2        exp(u) - 1 - u
#   phi2_over   phi2(u)/u
#   expm1       exp(u) - 1, -0 at -0
#   inverse     1/u for 1 <= u <= 2
# and those that `subexpressions.py` makes of them:
#   phi2_sum      u, b, a -> u (b + a phi2_over(u))
#   exp_in_parts  exp(u) beside another of them
PRIMITIVES = frozenset({"phi2", "phi2_over", "expm1", "inverse", "phi2_sum", "exp_in_parts"})
UNARY = _ELEMENTARY | {"floor", "neg", "sign", "isnan"}
BINARY = frozenset({
    "add", "sub", "mul", "div", "pow", "atan2", "minimum", "maximum", "lt", "le", "gt", "ge", "eq",
})  # fmt: skip
TRUTH = frozenset({"lt", "le", "gt", "ge", "eq", "isnan"})  # these return true or false


@dataclass(frozen=True)
class Node:
    """One operation on earlier nodes.

    name     a name of UNARY or BINARY, or: constant, input, parameter, where, gather
    takes    the places of its operands in the list of nodes
    number   of a constant its value; of an input or a parameter its place
    row      of a gather the table that is looked up
    """

    name: str
    takes: tuple[int, ...] = ()
    number: float = 0.0
    row: tuple[float, ...] = ()


@dataclass
class Graph:
    """A list of operations in an order in which they can be computed.

    nodes      each operation once, after its operands
    outputs    the places of the values written for each element
    sums       the places of the values summed over elements
    inputs     number of tensors that are read
    primitives whether operations of PRIMITIVES are recorded instead of the torch functions they are made of
    """

    dtype: torch.dtype
    inputs: int
    primitives: bool = False
    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict, repr=False)

    def add(self, node: Node) -> Traced:
        """The tracer of this operation; equal operations are recorded once."""
        # -0.0 == 0.0, yet x * -0.0 is not x * 0.0.
        key = (node.name, node.takes, node.number, math.copysign(1.0, node.number), node.row)
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
        return Traced(self, self._known[key])

    def constant(self, number: float) -> Traced:
        """A constant: rounded where it is combined with an element, not before."""
        return self.add(Node("constant", number=float(number)))

    def taken(self, value: Traced | float) -> Traced:
        """The tracer of an operand."""
        return value if isinstance(value, Traced) else self.constant(value)

    def uniform(self) -> set[int]:
        """The places of values that depend on parameters and constants only."""
        indices: set[int] = set()
        for index, node in enumerate(self.nodes):
            if node.name in ("constant", "parameter") or (
                node.takes and all(taken in indices for taken in node.takes)
            ):
                indices.add(index)
        return indices

    def carried(self) -> list[int]:
        """Places of the values computed once, and used for each element or written: constants stay in place."""
        uniform = self.uniform()
        used = {*self.outputs, *self.sums}
        used.update(t for p in self.needed() if p not in uniform for t in self.nodes[p].takes)
        return sorted(p for p in used & uniform if self.nodes[p].name != "constant")

    def needed(self) -> list[int]:
        """The places that outputs and sums depend on, in order."""
        indices = set(self.outputs) | set(self.sums)
        for index in range(len(self.nodes) - 1, -1, -1):
            if index in indices:
                indices.update(self.nodes[index].takes)
        return sorted(indices)


class Traced:
    """Tracer that replaces a tensor while its functions are recorded."""

    __slots__ = ("graph", "place")

    def __init__(self, graph: Graph, place: int) -> None:
        self.graph = graph
        self.place = place

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the kernel computes."""
        return self.graph.dtype

    @property
    def device(self) -> torch.device:
        """The device on which tables would be created."""
        return torch.device("cpu")

    def _with(self, name: str, *operands: Traced | float) -> Traced:
        takes = tuple(self.graph.taken(operand).place for operand in operands)
        return self.graph.add(Node(name, takes))

    def __add__(self, other: Traced | float) -> Traced:
        return self._with("add", self, other)

    def __radd__(self, other: float) -> Traced:
        return self._with("add", other, self)

    def __sub__(self, other: Traced | float) -> Traced:
        return self._with("sub", self, other)

    def __rsub__(self, other: float) -> Traced:
        return self._with("sub", other, self)

    def __mul__(self, other: Traced | float) -> Traced:
        return self._with("mul", self, other)

    def __rmul__(self, other: float) -> Traced:
        return self._with("mul", other, self)

    def __truediv__(self, other: Traced | float) -> Traced:
        return self._with("div", self, other)

    def __rtruediv__(self, other: float) -> Traced:
        return self._with("div", other, self)

    def __neg__(self) -> Traced:
        return self._with("neg", self)

    def __lt__(self, other: Traced | float) -> Traced:
        return self._with("lt", self, other)

    def __le__(self, other: Traced | float) -> Traced:
        return self._with("le", self, other)

    def __gt__(self, other: Traced | float) -> Traced:
        return self._with("gt", self, other)

    def __ge__(self, other: Traced | float) -> Traced:
        return self._with("ge", self, other)

    def __eq__(self, other: Traced | float) -> Traced:  # type: ignore[override]  # as torch does
        return self._with("eq", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ConfigError("a kernel branches on the value of a tensor, so it cannot be fused")

    def long(self) -> Traced:
        """An integer as the index of a gather: unchanged until it is used."""
        return self

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Traced:
        graph = next(
            value.graph for value in (*args, *(kwargs or {}).values()) if isinstance(value, Traced)
        )
        name = getattr(function, "__name__", str(function))
        if name in _ELEMENTARY and len(args) == 1:
            return graph.add(Node(name, (args[0].place,)))
        if name not in _TRANSLATED:
            raise ConfigError(
                f"torch.{name} has no fused form",
                fix="Add it to stamm.activations.fused.graph, or use the eager form",
            )
        return _TRANSLATED[name](graph, *args, **(kwargs or {}))


def _clamp(
    graph: Graph, x: Traced, min: Traced | float | None = None, max: Traced | float | None = None
) -> Traced:
    value = x
    if min is not None:
        value = value._with("maximum", value, min)
    if max is not None:
        value = value._with("minimum", value, max)
    return value


def _binary(name: str) -> Callable[..., Traced]:
    return lambda graph, x, y: graph.taken(x)._with(name, x, y)


def _where(graph: Graph, truth: Traced, x: Traced | float, y: Traced | float) -> Traced:
    return truth._with("where", truth, x, y)


def _full(graph: Graph, like: Traced, value: Traced | float) -> Traced:
    return graph.taken(value)


def _take(graph: Graph, row: Tensor, places: Traced) -> Traced:
    return graph.add(Node("gather", (places.place,), row=tuple(row.tolist())))


def _nan_to_num(graph: Graph, x: Traced, nan: float = 0.0) -> Traced:
    # Kernels use it on what was clamped, so there is no infinity to replace.
    return x._with("where", x._with("isnan", x), nan, x)


_TRANSLATED: dict[str, Callable[..., Traced]] = {
    "where": _where,
    "clamp": _clamp,
    "pow": _binary("pow"),
    "atan2": _binary("atan2"),
    "minimum": _binary("minimum"),
    "maximum": _binary("maximum"),
    "floor": lambda graph, x: x._with("floor", x),
    "sign": lambda graph, x: x._with("sign", x),
    "isnan": lambda graph, x: x._with("isnan", x),
    "nan_to_num": _nan_to_num,
    "zeros_like": lambda graph, x: graph.constant(0.0),
    "ones_like": lambda graph, x: graph.constant(1.0),
    "full_like": _full,
    "take": _take,
}
