"""Graphs in float32 whose roundings spoil the result, with the operations at fault in pairs of float32.

A pair is a number and what rounding took from it (Dekker 1971, Knuth's sum): sums are exact to 48
bits and products to 35, by operations that every language has. An elementary function takes the
second number of a pair to first order; its own error remains. Which operations are in pairs is
measured: as few as keep a result within what the roundings of its functions alone make of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stamm.activations.fused.graph import TRUTH, Graph, Node, Traced

# Ulp that a result may err beyond what the roundings of its functions make of it: at the inputs of the
# search, so that it is within 4 at all others.
ALLOWED = 3.0
_PARTS = 16  # of the operations that the search leaves out as one
_ALMOST = 1.05  # of the error with all operations in pairs, where that is larger
_LARGE = 1e38
_SPLIT = 2.0**13
_ILL = 32.0  # results whose condition number is larger are not judged
_STEP = 2.0**-20  # of the input, for a derivative
_SMALLEST = 2.0**-100
_NEAR = 2.0**-20  # two roundings of a product differ by less
_ROOT_PI = 2.0 / math.sqrt(math.pi)

# A processor's own operations are correctly rounded.
_DIRECT = frozenset({"add", "sub", "mul", "div", "neg", "abs", "lt", "le", "gt", "ge", "eq"})
FUNCTIONS = frozenset({
    "exp", "log", "log1p", "sin", "cos", "tan", "asin", "tanh", "atan", "erf", "erfc", "sinh", "cosh",
    "asinh", "acosh", "pow", "atan2",
})  # fmt: skip
_NAMED: dict[str, Callable[..., Tensor]] = {
    "div": torch.true_divide,
    "neg": torch.negative,
    # The first of two equal zeros; NaN where an operand is.
    "minimum": lambda a, b: torch.where((b < a) | torch.isnan(b), b, a),
    "maximum": lambda a, b: torch.where((b > a) | torch.isnan(b), b, a),
}


def divided_first(graph: Graph) -> Graph:
    """The float32 graph with a*(b/c) for a*b/c where all three depend on the element."""
    uniform = graph.uniform()

    def replaced(made: Graph, node: Node, operands: list[Traced]) -> Traced | None:
        top = graph.nodes[node.takes[0]] if node.name == "div" else node
        if node.name != "div" or top.name != "mul" or {*top.takes, node.takes[1]} & uniform:
            return None
        first, second = (made_of[taken] for taken in top.takes)
        return first * (second / operands[1])

    made_of: dict[int, Traced] = {}
    return rewritten(graph, replaced, made_of)


def rewritten(
    graph: Graph,
    replaced: Callable[[Graph, Node, list[Traced]], Traced | None],
    made_of: dict[int, Traced],
) -> Graph:
    """A copy of the graph in which `replaced` may have put other operations for some.

    replaced   copy, node, operands in the copy -> what to put, or None: the node itself
    made_of    is filled: the copy of each place
    """
    made = Graph(dtype=graph.dtype, inputs=graph.inputs)
    for index in graph.needed():
        node = graph.nodes[index]
        operands = [made_of[taken] for taken in node.takes]
        other = replaced(made, node, operands)
        if other is None:
            taken = tuple(operand.place for operand in operands)
            other = made.add(Node(node.name, taken, node.number, node.row))
        made_of[index] = other
    made.outputs = tuple(made_of[index].place for index in graph.outputs)
    made.sums = tuple(made_of[index].place for index in graph.sums)
    return made


def computed(
    graph: Graph,
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    apply: Callable[[Graph, Node, list[Tensor]], Tensor] | None = None,
) -> list[Tensor]:
    """Outputs and sums of a graph, every operation correctly rounded to its dtype.

    inputs, parameters   of the dtype of the graph
    apply                in place of `applied`
    """
    values: dict[int, Tensor] = {}
    for index in graph.needed():
        node = graph.nodes[index]
        operands = operands_of(node, values, inputs, parameters)
        values[index] = (apply or applied)(graph, node, operands)
    return [values[index] for index in (*graph.outputs, *graph.sums)]


def operands_of(
    node: Node,
    values: Mapping[int, Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> list[Tensor]:
    """The values that a node takes; of an input or parameter its own value."""
    if node.name in ("input", "parameter"):
        return [(inputs if node.name == "input" else parameters)[int(node.number)]]
    return [values[taken] for taken in node.takes]


def applied(graph: Graph, node: Node, operands: list[Tensor]) -> Tensor:
    """One operation, correctly rounded to the dtype of the graph.

    A function of float32 numbers is computed in float64 and rounded once more: correctly but for one
    in 2**28 results.
    """
    match node.name:
        case "input" | "parameter":
            return operands[0]
        case "constant":
            return torch.tensor(node.number, dtype=torch.float64).to(graph.dtype)
        case "where":
            return torch.where(operands[0], operands[1], operands[2])
        case "gather":
            row = torch.tensor(node.row, dtype=torch.float64).to(graph.dtype)
            return row[operands[0].long()]
        case name if name in _DIRECT:
            result: Tensor = (_NAMED.get(name) or getattr(torch, name))(*operands)
            return result
        case name:
            function = _NAMED.get(name) or getattr(torch, name)
            wide: Tensor = function(*(operand.double() for operand in operands))
            return wide if name in TRUTH else wide.to(graph.dtype)


def with_error_of(function: str, operands: Sequence[Tensor], own: Tensor) -> Tensor:
    """A function in float64 with the relative error of `own`, a result for the nearest float32 numbers.

    Edge   an infinity for a large number, and 0 for 0, have no relative error; `own` itself where the
           operands are float32 numbers, so that a sum of it lies between the same two
    """
    exact: Callable[..., Tensor] = getattr(torch, function)
    nearest = [u.float().double() for u in operands]
    near = exact(*nearest)
    wide = exact(*operands) * (1 + ((own.double() - near) / near).nan_to_num(0.0, 0.0, 0.0))
    same = own.isfinite() & (own != 0)
    for u, v in zip(operands, nearest, strict=True):
        same = same & (u == v)
    return torch.where(same, own.double(), wide)


def _with_rounded_functions(graph: Graph, node: Node, operands: list[Tensor]) -> Tensor:
    if node.name not in FUNCTIONS:
        return applied(graph, node, operands)
    own = getattr(torch, node.name)(*(u.float().double() for u in operands)).float()
    return with_error_of(node.name, operands, own)


def compensated(graph: Graph, wide: Graph, parameters: Sequence[float], *, weights: int) -> Graph:
    """The float32 graph with the fewest operations in pairs that a search by halves finds.

    wide         the same in float64
    parameters   values at which errors are measured
    weights      number of leading inputs that are factors, and are 1 here
    Edge         the graph itself where it is stable, or pairs help nothing
    Checked      tests/unit/activations/test_double_float.py
    """
    errors = _Errors(wide, parameters, weights)
    before = errors.of(graph)
    spoilt = [k for k, error in enumerate(before) if error > ALLOWED]
    if not spoilt:
        return graph
    chosen = [
        index for index in _results(graph, spoilt).needed()
        if graph.nodes[index].name not in ("input", "parameter")
    ]  # fmt: skip
    after = errors.of(in_pairs(graph, chosen), spoilt)
    limits = [max(ALLOWED, error * _ALMOST) for error in after]
    if not any(after[k] < before[i] for k, i in enumerate(spoilt)):
        return graph
    size, least = len(chosen), len(chosen) // _PARTS
    while size > max(1, least):
        size = (size + 1) // 2
        for first in range(0, len(chosen), size)[::-1]:
            fewer = chosen[:first] + chosen[first + size :]
            now = errors.of(in_pairs(graph, fewer), spoilt)
            if all(error <= limit for error, limit in zip(now, limits, strict=True)):
                chosen = fewer
    return in_pairs(graph, chosen)


def _results(graph: Graph, kept: Sequence[int]) -> Graph:
    """The graph with these of its results only, as outputs."""
    places = (*graph.outputs, *graph.sums)
    return replace(graph, outputs=tuple(places[k] for k in kept), sums=())


class _Errors:
    """Errors of a graph in float32, at inputs of all magnitudes and evenly between -2 and 2, and -20 and 20."""

    def __init__(self, wide: Graph, parameters: Sequence[float], weights: int) -> None:
        sizes = torch.logspace(-6, 2, 256, dtype=torch.float64)
        even = [torch.linspace(-w, w, 3201, dtype=torch.float64) for w in (2, 20)]
        x = torch.cat([-sizes, *even, sizes]).float().double()
        others = wide.inputs - weights - 1
        self._x = [torch.ones_like(x)] * weights + [x]
        self._x += [x.roll(997) / 8] * others  # another order, for a gate's other input
        self._parameters = [torch.tensor(p).double() for p in parameters]
        self._true = self._values(wide, 1.0)
        above, below = (self._values(wide, 1 + sign * _STEP) for sign in (1, -1))
        self._judged, self._units = [], []
        for value, up, down in zip(self._true, above, below, strict=True):
            condition = ((up - down) / (2 * _STEP * value)).abs()
            size = value.abs()
            judged = (condition < _ILL) & (size > _SMALLEST) & (size < torch.finfo().max / 256)
            self._judged.append(judged & (self._x[weights].abs() > _SMALLEST))
            self._units.append(torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 24))
        allowed = self._values(wide, 1.0, rounded=True)
        self._allowed = [
            (a - t).abs() / u for a, t, u in zip(allowed, self._true, self._units, strict=True)
        ]

    def _values(self, graph: Graph, factor: float, *, rounded: bool = False) -> list[Tensor]:
        shape = self._x[0].shape
        given = [x if bool((x == 1).all()) else x * factor for x in self._x]
        given = [x.to(graph.dtype) for x in given]
        function = _with_rounded_functions if rounded else applied
        results = computed(graph, given, [p.to(graph.dtype) for p in self._parameters], function)
        return [torch.broadcast_to(result, shape).double() for result in results]

    def of(self, graph: Graph, kept: Sequence[int] | None = None) -> list[float]:
        """The largest error of each result, or of these, in ulp over 1 + the condition number."""
        kept = range(len(self._true)) if kept is None else kept
        worst = []
        for k, value in zip(kept, self._values(_results(graph, kept), 1.0), strict=True):
            errors = (value - self._true[k]).abs() / self._units[k] - self._allowed[k]
            errors = torch.where(self._judged[k], errors, 0.0).nan_to_num(nan=torch.inf)
            worst.append(errors.max().item())
        return worst


Pair = tuple[Traced, Traced | None]  # without a second number: exact


def in_pairs(graph: Graph, chosen: Collection[int]) -> Graph:
    """A copy of the graph with these of its operations in pairs.

    Edge   a pair whose second number is not finite, as where a product overflows, counts as its first
    """
    made = Graph(dtype=graph.dtype, inputs=graph.inputs)
    wide = frozenset(chosen)
    values: dict[int, Pair] = {}
    for index in graph.needed():
        node = graph.nodes[index]
        operands = [values[taken] for taken in node.takes]
        if index in wide and (pair := _paired(made, node, operands)) is not None:
            values[index] = pair
        else:
            taken = tuple(_sum(made, operand).place for operand in operands)
            values[index] = made.add(Node(node.name, taken, node.number, node.row)), None
    made.outputs, made.sums = (
        tuple(_sum(made, values[index]).place for index in places)
        for places in (graph.outputs, graph.sums)
    )
    return made


def _op(graph: Graph, name: str, *operands: Traced | float) -> Traced:
    return graph.add(Node(name, tuple(graph.taken(operand).place for operand in operands)))


def _sum(graph: Graph, pair: Pair) -> Traced:
    """The number that a pair is nearest to; -0 of -0 and 0."""
    first, second = pair
    if second is None:
        return first
    size = _op(graph, "abs", second)
    total = _op(graph, "where", size < _LARGE, first + second, first)  # not NaN, nor infinite
    return _op(graph, "where", size > 0.0, total, first)


def _plus(a: Traced | None, b: Traced | None) -> Traced | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _times(a: Traced, b: Traced | None) -> Traced | None:
    return None if b is None else a * b


def _is_power_of_two(value: Traced) -> bool:
    node = value.graph.nodes[value.place]
    return node.name == "constant" and abs(math.frexp(node.number)[0]) == 0.5


def _added(a: Pair, b: Pair) -> Pair:
    """By Knuth's sum. Terms that cancel leave a second number that is not small beside the first."""
    if a[0].graph.nodes[a[0].place].name == "constant":
        a, b = b, a  # XLA makes x of (1 + x) - 1
    total = a[0] + b[0]
    back = total - a[0]
    rest = (a[0] - (total - back)) + (b[0] - back)
    low = _plus(a[1], b[1])
    return total, rest if low is None else rest + low


def _halves(value: Traced) -> tuple[Traced, Traced]:
    """The upper 12 digits of a number, and the others."""
    node = value.graph.nodes[value.place]
    if node.name == "constant":
        half = node.number / 2
        first = (_single(half + node.number / _SPLIT) - half) * _SPLIT
        return value.graph.constant(first), value.graph.constant(node.number - first)
    half_value = value * 0.5
    upper = ((half_value + value * (1 / _SPLIT)) - half_value) * _SPLIT
    return upper, value - upper


def _single(number: float) -> float:
    return torch.tensor(number, dtype=torch.float64).float().item()


def _product(a: Traced, b: Traced) -> Pair:
    """a*b from products of halves, which are exact: it is the same where * and + become one operation."""
    if _is_power_of_two(a) or _is_power_of_two(b):
        return a * b, None
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    first, others = a1 * b1, (a1 * b2 + a2 * b1) + a2 * b2
    total = first + others
    rest = (first - total) + others
    # Halves of a zero lose the sign. Of what overflows they make NaN, or an infinity of either sign where
    # * and + are one operation.
    product = a * b
    near = _op(a.graph, "abs", total - product) < _op(a.graph, "abs", product) * _NEAR
    return _op(a.graph, "where", near, total, product), rest


def _multiplied(a: Pair, b: Pair) -> Pair:
    product, rest = _product(a[0], b[0])
    return product, _plus(rest, _plus(_times(a[0], b[1]), _times(b[0], a[1])))


def _divided(a: Pair, b: Pair) -> Pair:
    quotient = a[0] / b[0]
    product, lost = _product(quotient, b[0])
    rest = a[0] - product
    rest = rest if lost is None else rest - lost
    rest = rest if a[1] is None else rest + a[1]
    rest = rest if b[1] is None else rest - quotient * b[1]
    return quotient, rest / b[0]


def _root(graph: Graph, a: Pair) -> Pair:
    root = _op(graph, "sqrt", a[0])
    square, lost = _product(root, root)
    rest = a[0] - square
    rest = rest if lost is None else rest - lost
    rest = rest if a[1] is None else rest + a[1]
    return root, rest / (2.0 * root)


# The derivative of a function f, from graph, u and f(u).
_SLOPES: Mapping[str, Callable[[Graph, Traced, Traced], Traced]] = {
    "exp": lambda g, u, y: y,
    "log": lambda g, u, y: 1.0 / u,
    "log1p": lambda g, u, y: 1.0 / (1.0 + u),
    "tanh": lambda g, u, y: 1.0 - y * y,
    "sin": lambda g, u, y: _op(g, "cos", u),
    "cos": lambda g, u, y: -_op(g, "sin", u),
    "sinh": lambda g, u, y: _op(g, "cosh", u),
    "cosh": lambda g, u, y: _op(g, "sinh", u),
    "atan": lambda g, u, y: 1.0 / (1.0 + u * u),
    "asinh": lambda g, u, y: 1.0 / _op(g, "sqrt", 1.0 + u * u),
    "erf": lambda g, u, y: _ROOT_PI * _op(g, "exp", -(u * u)),
    "erfc": lambda g, u, y: -_ROOT_PI * _op(g, "exp", -(u * u)),
}


def _paired(graph: Graph, node: Node, operands: Sequence[Pair]) -> Pair | None:
    """The operation in pairs, or None for one that has no such form."""
    match node.name, operands:
        case "constant", _:
            first = _single(node.number)
            rest = node.number - first if math.isfinite(first) else 0.0
            return graph.constant(first), graph.constant(rest) if rest else None
        case "add", (a, b):
            return _added(a, b)
        case "sub", (a, b):
            return _added(a, _negated(b))
        case "mul", (a, b):
            return _multiplied(a, b)
        case "div", (a, b):
            return _divided(a, b)
        case "sqrt", (a,):
            return _root(graph, a)
        case "neg", (a,):
            return _negated(a)
        case "abs", (a,):
            if a[1] is None:
                return _op(graph, "abs", a[0]), None
            return _op(graph, "abs", a[0]), _op(graph, "where", a[0] < 0.0, -a[1], a[1])
        case "where", (truth, a, b):
            return _selected(graph, truth[0], a, b)
        case (("minimum" | "maximum"), (a, b)):
            least = _op(graph, node.name, a[0], b[0])
            if a[1] is None and b[1] is None:
                return least, None
            other = b[0] < a[0] if node.name == "minimum" else b[0] > a[0]
            return least, _selected(graph, other, b, a)[1]
        case "pow", (a, (power, None)):
            base = _sum(graph, a)
            result = _op(graph, "pow", base, power)
            if a[1] is None:
                return result, None
            return result, (a[1] - (base - a[0])) * (power * (result / base))
        case "atan2", ((y, None), a):
            x = _sum(graph, a)
            angle = _op(graph, "atan2", y, x)
            if a[1] is None:
                return angle, None
            return angle, ((x - a[0]) - a[1]) * (y / (x * x + y * y))
        case name, (a,) if name in _SLOPES:
            u = _sum(graph, a)  # the nearest number, for which the function has its own error
            result = _op(graph, name, u)
            if a[1] is None:
                return result, None
            return result, (a[1] - (u - a[0])) * _SLOPES[name](graph, u, result)
    return None


def _negated(a: Pair) -> Pair:
    return -a[0], None if a[1] is None else -a[1]


def _selected(graph: Graph, truth: Traced, a: Pair, b: Pair) -> Pair:
    first = _op(graph, "where", truth, a[0], b[0])
    if a[1] is None and b[1] is None:
        return first, None
    zero = graph.constant(0.0)
    return first, _op(
        graph, "where", truth, zero if a[1] is None else a[1], zero if b[1] is None else b[1]
    )
