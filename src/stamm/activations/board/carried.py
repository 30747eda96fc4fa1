"""What the errors of a runtime's elementary functions alone make of a value or gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from stamm.activations.board.targets import Case
from stamm.activations.codegen.double_float import applied
from stamm.activations.fused.graph import Graph

FUNCTIONS = frozenset({
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "asin", "tanh", "atan", "erf", "erfc",
    "sinh", "cosh", "asinh", "acosh",
})  # fmt: skip
Call = tuple[str, Tensor]  # of a function at float32 inputs
OwnFunctions = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def carried(cases: Sequence[Case], own: OwnFunctions) -> list[list[Tensor]]:
    """For each case value and gradients in float64, but for the functions' own relative errors.

    own      results of the runtime's functions, by name, at float32 inputs; what it lacks is exact
    Edge     a function at u has the relative error that it has at the float32 number nearest to u
    """
    walks = [_walk(case) for case in cases]
    results: list[list[Tensor]] = [[] for _ in cases]
    waiting: dict[int, list[Call]] = {}

    def advance(place: int, answers: list[Tensor] | None) -> None:
        try:
            waiting[place] = walks[place].send(answers)
        except StopIteration as ended:
            waiting.pop(place, None)
            results[place] = ended.value

    for place in range(len(walks)):
        advance(place, None)
    while waiting:
        asked: dict[str, list[Tensor]] = defaultdict(list)
        for calls in waiting.values():
            for name, u in calls:
                asked[name].append(u)
        given = {name: torch.cat(parts) for name, parts in asked.items()}
        answered = own(given)
        parts = {
            name: iter(
                torch.split(
                    answered.get(name, getattr(torch, name)(u.double())), _sizes(asked[name])
                )
            )
            for name, u in given.items()
        }
        for place, calls in list(waiting.items()):
            advance(place, [next(parts[name]) for name, _ in calls])
    return results


def _sizes(parts: Sequence[Tensor]) -> list[int]:
    return [len(part) for part in parts]


def _walk(case: Case) -> Generator[list[Call], list[Tensor] | None, list[Tensor]]:
    """Yields calls that are ready, takes their results, and returns value and gradients."""
    given = [x.double() for x in case.given]
    weight = torch.ones_like(given[0])
    parameters = [torch.tensor(p, dtype=torch.float64) for p in case.parameters]
    results: list[Tensor] = []
    for graphs, inputs in (
        (case.program.forward, given),
        (case.program.backward, [weight, *given]),
    ):
        results += yield from _computed(graphs[torch.float64], inputs, parameters)
    return [torch.broadcast_to(result, weight.shape) for result in results]


def _computed(
    graph: Graph, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Generator[list[Call], list[Tensor] | None, list[Tensor]]:
    values: dict[int, Tensor] = {}
    left = graph.needed()
    while left:
        ready: list[int] = []
        later: list[int] = []
        for place in left:
            node = graph.nodes[place]
            if any(taken not in values for taken in node.takes):
                later.append(place)
            elif node.name in FUNCTIONS and values[node.takes[0]].dim():
                ready.append(place)
            else:
                values[place] = applied(graph, node, values, inputs, parameters)
        left = later
        if ready:
            arguments = [values[graph.nodes[place].takes[0]] for place in ready]
            names = [graph.nodes[place].name for place in ready]
            answers = yield [(n, u.float()) for n, u in zip(names, arguments, strict=True)]
            assert answers is not None
            for place, name, u, answer in zip(ready, names, arguments, answers, strict=True):
                function = getattr(torch, name)
                near = function(u.float().double())
                off = (answer.double() - near) / near
                # An infinity for a large number, and 0 for 0, have no relative error.
                values[place] = function(u) * (1 + off.nan_to_num(0.0, 0.0, 0.0))
    return [values[place] for place in (*graph.outputs, *graph.sums)]
