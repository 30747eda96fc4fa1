"""Common-subexpression elimination across the branches of a selection.

where(c, g(f(p)), h(f(q))) is where(c, g(t), h(t)) with t = f(where(c, p, q)): vectors compute both
branches, and the formulas of activations in pieces call the same functions in each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from stamm.activations.fused.graph import Graph, Node

# Operations that cost more than the selection of their operands.
_CALLS = frozenset({
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "asin", "tanh", "atan", "erf", "erfc",
    "sinh", "cosh", "asinh", "acosh", "pow", "atan2", "div",
})  # fmt: skip


def eliminate_common_calls(graph: Graph) -> Graph:
    """A graph with the same results, whose exclusive branches share their calls.

    Checked  tests/unit/activations/test_fused_subexpressions.py
    """
    while (merged := _merged(graph)) is not None:
        graph = merged
    return graph


def _merged(graph: Graph) -> Graph | None:
    """The graph with one pair of calls merged, or None where there is no pair."""
    uniform = graph.uniform()
    for condition, branches in _branches(graph):
        first, second = (
            [p for p in sorted(branch) if graph.nodes[p].name in _CALLS and p not in uniform]
            for branch in branches
        )
        for one, other in product(first, second):
            alike = _alike(graph.nodes[one], graph.nodes[other])
            # Once joined, calls occur in both branches: later ones may depend on each other there.
            if alike and one not in _taken(graph, other) and other not in _taken(graph, one):
                return _joined(graph, condition, one, other)
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
    found = {*graph.outputs, *graph.sums}
    for place in range(len(graph.nodes) - 1, -1, -1):
        if place in found:
            node = graph.nodes[place]
            selects = node.name == "where" and node.takes[0] == condition
            found.update(t for k, t in enumerate(node.takes) if not (selects and k == without))
    return found


def _alike(one: Node, other: Node) -> bool:
    # A power with a constant exponent can be a square root: an exponent that is selected cannot.
    return one.name == other.name and (one.name != "pow" or one.takes[1] == other.takes[1])


def _taken(graph: Graph, place: int) -> set[int]:
    """The places that one depends on."""
    found = {place}
    for earlier in range(place, -1, -1):
        if earlier in found:
            found.update(graph.nodes[earlier].takes)
    return found


def _joined(graph: Graph, condition: int, one: int, other: int) -> Graph:
    """The graph in which calls `one` and `other` are one call on selected operands."""
    nodes = list(graph.nodes)
    takes = []
    for p, q in zip(nodes[one].takes, nodes[other].takes, strict=True):
        takes.append(p if p == q else len(nodes))
        if p != q:
            nodes.append(Node("where", (condition, p, q)))
    call = len(nodes)
    nodes.append(Node(nodes[one].name, tuple(takes)))
    return _ordered(graph, nodes, {one: call, other: call})


def _ordered(graph: Graph, nodes: Sequence[Node], instead: dict[int, int]) -> Graph:
    """The needed nodes in an order in which they can be computed, some places replaced."""
    found = Graph(dtype=graph.dtype, inputs=graph.inputs)
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
            places[waiting.pop()] = found.add(copy).place
    found.outputs = tuple(places[instead.get(p, p)] for p in graph.outputs)
    found.sums = tuple(places[instead.get(p, p)] for p in graph.sums)
    return found
