"""C++ source of a pass: its graph as statements on vectors, between loops written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch

from stamm.activations.fused.graph import TRUTH, Graph, Node

NUMBERS = {torch.float32: "float", torch.float64: "double"}
_HELD = {torch.float32: "float", torch.bfloat16: "BFloat16", torch.float16: "Half"}
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
}  # fmt: skip
# Square roots round better than powers, and are single instructions. Of a negative base: NaN.
_POWERS = {
    0.5: "sqrt({0})", -0.5: "1 / sqrt({0})", 1.5: "{0} * sqrt({0})", -1.5: "1 / sqrt({0}) / {0}",
}  # fmt: skip
_HEAD = '#include "pointwise.h"\n\nusing namespace stamm;\n\n'


def source(graphs: Mapping[str, Graph], stored: torch.dtype, *, by_column: bool) -> str:
    """The whole source of a shared object with one function for each pass, under its name.

    stored      the dtype of the tensors that are read and written
    by_column   whether each column has its own parameters
    """
    loop = "run_columns" if by_column else "run"
    # Static tables of a struct with external linkage are one for all shared objects of a process.
    parts = [
        f"namespace {{\n{_struct(f'Pass{index}', eliminate_common_calls(graph))}}}\n\n"
        f'extern "C" void {name}(const Strided* in, const Strided* out, int64_t rows,\n'
        "    int64_t columns, const double* parameters, double* sums, double* partial,\n"
        "    int threads) {\n"
        f"  {loop}<Pass{index}, {_HELD[stored]}>(in, out, rows, columns, parameters, sums,\n"
        "      partial, threads);\n"
        "}\n"
        for index, (name, graph) in enumerate(graphs.items())
    ]
    return _HEAD + "\n".join(parts)


def _struct(name: str, graph: Graph) -> str:
    """The struct that the loops take; they call `prepare` with vectors of doubles."""
    uniform, needed = graph.uniform(), graph.needed()
    before = [index for index in needed if index in uniform]
    varying = [index for index in needed if index not in uniform]
    carried = graph.carried()
    parameters = 1 + max(
        (int(node.number) for node in graph.nodes if node.name == "parameter"), default=-1
    )
    prepared = [_statement(graph, index) for index in before if not _is_constant(graph, index)]
    prepared += [f"uniforms[{k}] = v{index};" for k, index in enumerate(carried)]
    applied = [f"const V v{index} = uniforms[{k}];" for k, index in enumerate(carried)]
    applied += [_statement(graph, index) for index in varying]
    applied += [f"out[{k}] = {_operand(graph, p)};" for k, p in enumerate(graph.outputs)]
    applied += [f"sum[{k}] = {_operand(graph, p)};" for k, p in enumerate(graph.sums)]
    return (
        f"struct {name} {{\n"
        f"  using Number = {NUMBERS[graph.dtype]};\n"
        "  using V = Vector<Number>;\n"
        f"  static constexpr int inputs = {graph.inputs}, outputs = {len(graph.outputs)},"
        f" sums = {len(graph.sums)};\n"
        f"  static constexpr int parameters = {parameters}, uniforms = {len(carried)};\n"
        "  template <class V>\n"
        "  static inline void prepare(const V* parameters, V* uniforms) {\n"
        f"{_indented(prepared)}"
        "  }\n"
        "  static inline void apply(const V* in, const V* uniforms, V* out, V* sum) {\n"
        f"{_indented(applied)}"
        "  }\n"
        "};\n"
    )


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def _is_constant(graph: Graph, index: int) -> bool:
    return graph.nodes[index].name == "constant"


def _operand(graph: Graph, index: int) -> str:
    node = graph.nodes[index]
    if node.name == "constant":
        return f"full<V>({_literal(node.number)})"
    return f"v{index}"


def _literal(number: float) -> str:
    if number != number:
        return "NAN"
    if number in (float("inf"), float("-inf")):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(number)


def _statement(graph: Graph, index: int) -> str:
    node = graph.nodes[index]
    if node.name == "gather":
        row = ", ".join(_literal(number) for number in node.row)
        return (
            f"static const number_of<V> row{index}[] = {{{row}}}; "
            f"const V v{index} = gather(row{index}, {_operand(graph, node.takes[0])});"
        )
    kind = "auto" if node.name in TRUTH else "V"
    return f"const {kind} v{index} = {_expression(graph, node)};"


def _expression(graph: Graph, node: Node) -> str:
    taken = [_operand(graph, index) for index in node.takes]
    match node.name:
        case "input":
            return f"in[{int(node.number)}]"
        case "parameter":
            return f"parameters[{int(node.number)}]"
        case "where":
            return f"{taken[0]} ? {taken[1]} : {taken[2]}"
        case "neg" if graph.nodes[node.takes[0]].name == "abs":
            return f"minus_abs({_operand(graph, graph.nodes[node.takes[0]].takes[0])})"
        case "neg":
            return f"-{taken[0]}"
        case "isnan":
            return f"{taken[0]} != {taken[0]}"
        case "maximum" | "minimum":
            known = graph.nodes[node.takes[1]].name == "constant"
            named = {"maximum": "at_least", "minimum": "at_most"}[node.name] if known else node.name
            return f"{named}({taken[0]}, {taken[1]})"
        case "pow" if (power := graph.nodes[node.takes[1]]).name == "constant" and (
            power.number in _POWERS
        ):
            return _POWERS[power.number].format(taken[0])
        case name if name in _OPERATORS:
            return f"{taken[0]} {_OPERATORS[name]} {taken[1]}"
        case name:
            return f"{name}({', '.join(taken)})"


# Operations that cost more than the selection of their operands.
_CALLS = frozenset({
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "asin", "tanh", "atan", "erf", "erfc",
    "sinh", "cosh", "asinh", "acosh", "pow", "atan2", "div", "phi2", "phi2_over", "expm1",
    "phi2_sum",
})  # fmt: skip
_OF_ONE_EXPONENTIAL = frozenset({"phi2", "phi2_over", "expm1", "phi2_sum"})
# By the name of a comparison of x and a, the clamps by a that do nothing where it is true, and
# where it is false.
_IDLE = {
    "lt": ("minimum", "maximum"), "le": ("minimum", "maximum"),
    "gt": ("maximum", "minimum"), "ge": ("maximum", "minimum"),
}  # fmt: skip


def eliminate_common_calls(graph: Graph) -> Graph:
    """A graph with the same results, whose exclusive branches share their calls.

    Edge     operations of `graph.PRIMITIVES` that replace others differ in their rounding.
    Checked  tests/unit/activations/test_fused_subexpressions.py
    """
    if graph.primitives:
        graph = _with_sums(graph)
    while (without := _without_a_clamp(graph)) is not None:
        graph = without
    while (merged := _merged(graph)) is not None:
        graph = merged
    return _in_parts(graph) if graph.primitives else graph


def _with_sums(graph: Graph) -> Graph:
    """Each x (b + a phi2_over(x)) as one operation, and q x (1 + phi2_over(x)) as q expm1(x)."""
    nodes, instead = list(graph.nodes), {}
    for index in graph.needed():
        if nodes[index].name != "mul":
            continue
        for x, other in (nodes[index].takes, nodes[index].takes[::-1]):
            summed = _sum_of(nodes, x, other)
            if summed is not None:
                nodes.append(summed)
                instead[index] = len(nodes) - 1
                break
    return _ordered(graph, nodes, instead) if instead else graph


def _sum_of(nodes: list[Node], factor: int, other: int) -> Node | None:
    """factor * other as a node, where `other` is a sum with phi2_over(x) and x divides `factor`."""
    if nodes[other].name != "add":
        return None
    for b, term in (nodes[other].takes, nodes[other].takes[::-1]):
        if nodes[term].name == "phi2_over" and nodes[b] == Node("constant", number=1.0):
            (x,) = nodes[term].takes
            if factor == x:
                return Node("expm1", (x,))
            if nodes[factor].name == "mul" and x in nodes[factor].takes:
                q = next((t for t in nodes[factor].takes if t != x), x)
                nodes.append(Node("expm1", (x,)))
                return Node("mul", (q, len(nodes) - 1))
        if nodes[term].name == "mul":
            for a, over in (nodes[term].takes, nodes[term].takes[::-1]):
                if nodes[over] == Node("phi2_over", (factor,)):
                    return Node("phi2_sum", (factor, b, a))
    return None


def _without_a_clamp(graph: Graph) -> Graph | None:
    """The graph without one clamp that does nothing where its value is used, or None.

    A clamp that a table index depends on stays: the index is computed for every branch.
    """
    looked_up: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.name == "gather":
            looked_up |= _taken(graph, index)
    for condition, branches in _branches(graph):
        comparison = graph.nodes[condition]
        for clamp, branch in zip(_IDLE.get(comparison.name, ()), branches, strict=False):
            for index in sorted(branch - looked_up):
                node = graph.nodes[index]
                if node.name == clamp and node.takes == comparison.takes:
                    return _ordered(graph, graph.nodes, {index: node.takes[0]})
    return None


def _in_parts(graph: Graph) -> Graph:
    """The graph whose exponentials are computed in parts where another function needs those."""
    shared = {node.takes[0] for node in graph.nodes if node.name in _OF_ONE_EXPONENTIAL}
    nodes = [
        Node("exp_in_parts", node.takes) if node.name == "exp" and node.takes[0] in shared else node
        for node in graph.nodes
    ]
    return _ordered(graph, nodes, {})


def _merged(graph: Graph) -> Graph | None:
    """The graph with one pair of calls merged, or None where there is no pair."""
    uniform = graph.uniform()
    for condition, branches in _branches(graph):
        first, second = (
            [p for p in sorted(branch) if graph.nodes[p].name in _CALLS and p not in uniform]
            for branch in branches
        )
        for first_call, second_call in product(first, second):
            if first_call in _taken(graph, second_call) or second_call in _taken(graph, first_call):
                continue  # once joined, calls occur in both branches: later ones may depend on each other there
            if _alike(graph.nodes[first_call], graph.nodes[second_call]):
                return _joined(graph, condition, first_call, second_call)
            if _share_an_exponential(graph, graph.nodes[first_call], graph.nodes[second_call]):
                return _of_one_argument(graph, condition, first_call, second_call)
    return None


def _branches(graph: Graph) -> Iterator[tuple[int, tuple[set[int], set[int]]]]:
    """For each condition the places that are used only where it is true, and only where it is false."""
    selections = (graph.nodes[p] for p in graph.needed() if graph.nodes[p].name == "where")
    conditions = dict.fromkeys(node.takes[0] for node in selections)
    for condition in conditions:
        without = [_reached(graph, condition, without=operand) for operand in (1, 2)]
        # What is in neither occurs inside nested selections by one condition, and is never used.
        yield condition, (without[1] - without[0], without[0] - without[1])


def _reached(graph: Graph, condition: int, *, without: int) -> set[int]:
    """The places that are needed when one operand of the selections by `condition` is not."""
    reached = {*graph.outputs, *graph.sums}
    for index in range(len(graph.nodes) - 1, -1, -1):
        if index in reached:
            node = graph.nodes[index]
            selects = node.name == "where" and node.takes[0] == condition
            reached.update(t for k, t in enumerate(node.takes) if not (selects and k == without))
    return reached


def _alike(first: Node, second: Node) -> bool:
    # A power with a constant exponent can be a square root: an exponent that is selected cannot.
    return first.name == second.name and (first.name != "pow" or first.takes[1] == second.takes[1])


def _share_an_exponential(graph: Graph, first: Node, second: Node) -> bool:
    """Whether they are different functions that take one exponential if their arguments become one.

    A selected argument is not selected again: with a third call this would not terminate.
    """
    if "where" in (graph.nodes[node.takes[0]].name for node in (first, second)):
        return False
    names = {first.name, second.name}
    return (
        names <= _OF_ONE_EXPONENTIAL | {"exp"}
        and not names.isdisjoint(_OF_ONE_EXPONENTIAL)
        and first.takes[0] != second.takes[0]
    )


def _of_one_argument(graph: Graph, condition: int, first: int, second: int) -> Graph:
    """The graph in which calls `first` and `second` have one, selected, first argument."""
    nodes = list(graph.nodes)
    argument = _selected(nodes, condition, nodes[first].takes[0], nodes[second].takes[0])
    instead = {}
    for call in (first, second):
        nodes.append(Node(nodes[call].name, (argument, *nodes[call].takes[1:])))
        instead[call] = len(nodes) - 1
    return _ordered(graph, nodes, instead)


def _selected(nodes: list[Node], condition: int, first: int, second: int) -> int:
    """The index of where(condition, first, second), which is min(x, b) for x <= a <= b and x, min(x, b)."""
    comparison, clamp = nodes[condition], nodes[second]
    if comparison.name in ("lt", "le") and clamp.name == "minimum":
        x, a, b = *comparison.takes, clamp.takes[1]
        constant = nodes[a].name == nodes[b].name == "constant"
        if first == x == clamp.takes[0] and constant and nodes[a].number <= nodes[b].number:
            return second
    nodes.append(Node("where", (condition, first, second)))
    return len(nodes) - 1


def _taken(graph: Graph, index: int) -> set[int]:
    """The indices of the nodes that a node depends on, itself included."""
    taken = {index}
    for earlier in range(index, -1, -1):
        if earlier in taken:
            taken.update(graph.nodes[earlier].takes)
    return taken


def _joined(graph: Graph, condition: int, first: int, second: int) -> Graph:
    """The graph in which calls `first` and `second` are one call on selected operands."""
    nodes = list(graph.nodes)
    takes = []
    for p, q in zip(nodes[first].takes, nodes[second].takes, strict=True):
        takes.append(p if p == q else _selected(nodes, condition, p, q))
    call = len(nodes)
    nodes.append(Node(nodes[first].name, tuple(takes)))
    return _ordered(graph, nodes, {first: call, second: call})


def _ordered(graph: Graph, nodes: Sequence[Node], instead: dict[int, int]) -> Graph:
    """The needed nodes in an order in which they can be computed, some places replaced."""
    ordered = Graph(dtype=graph.dtype, inputs=graph.inputs, primitives=graph.primitives)
    places: dict[int, int] = {}
    for root in (*graph.outputs, *graph.sums):
        waiting = [instead.get(root, root)]
        while waiting:
            node = nodes[waiting[-1]]
            takes = [instead.get(t, t) for t in node.takes]
            missing = [t for t in takes if t not in places]
            if missing:
                waiting.extend(reversed(missing))
                continue
            copy = Node(node.name, tuple(places[t] for t in takes), node.number, node.row)
            places[waiting.pop()] = ordered.add(copy).place
    ordered.outputs = tuple(places[instead.get(p, p)] for p in graph.outputs)
    ordered.sums = tuple(places[instead.get(p, p)] for p in graph.sums)
    return ordered
