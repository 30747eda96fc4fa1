"""Values and gradients with no errors but those of a runtime's elementary functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence

import torch
from torch import Tensor

from stamm.activations.board.targets import Case
from stamm.activations.fused.double_float import (
    FUNCTIONS,
    applied,
    operands_of,
    with_error_of,
)
from stamm.activations.fused.graph import Graph

Call = tuple[str, list[Tensor]]  # of a function at float32 inputs
OwnFunctions = Callable[[dict[str, list[Tensor]]], dict[str, Tensor]]


def carried(cases: Sequence[Case], own: OwnFunctions) -> list[list[Tensor]]:
    """For each case value and gradients in float64, but for the functions' own relative errors.

    own      results of the runtime's functions, by name, at float32 inputs; what it lacks is exact
    Edge     a function at u has the relative error that it has at the float32 number nearest to u
    """
    walks = [_walk(case) for case in cases]
    results: list[list[Tensor]] = [[] for _ in cases]
    waiting: dict[int, list[Call]] = {}

    def advance(index: int, answers: list[Tensor] | None) -> None:
        try:
            waiting[index] = walks[index].send(answers)
        except StopIteration as ended:
            waiting.pop(index, None)
            results[index] = ended.value

    for index in range(len(walks)):
        advance(index, None)
    while waiting:
        asked: dict[str, list[list[Tensor]]] = defaultdict(list)
        for calls in waiting.values():
            for name, operands in calls:
                asked[name].append(operands)
        given = {
            name: [torch.cat(parts) for parts in zip(*all_calls, strict=True)]
            for name, all_calls in asked.items()
        }
        answered = own(given)
        answers: dict[str, Iterator[Tensor]] = {}
        for name, operands in given.items():
            exact = getattr(torch, name)(*(u.double() for u in operands))
            sizes = [len(call[0]) for call in asked[name]]
            answers[name] = iter(torch.split(answered.get(name, exact), sizes))
        for index, calls in list(waiting.items()):
            advance(index, [next(answers[name]) for name, _ in calls])
    return results


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
    remaining = graph.needed()
    while remaining:
        ready: list[tuple[int, str, list[Tensor]]] = []
        later: list[int] = []
        for index in remaining:
            node = graph.nodes[index]
            if any(taken not in values for taken in node.takes):
                later.append(index)
                continue
            operands = operands_of(node, values, inputs, parameters)
            if node.name in FUNCTIONS and any(u.dim() for u in operands):
                longest = max((u.shape for u in operands), key=len)
                ready.append((index, node.name, [u.expand(longest) for u in operands]))
            else:
                values[index] = applied(graph, node, operands)
        remaining = later
        if ready:
            answers = yield [(name, [u.float() for u in operands]) for _, name, operands in ready]
            assert answers is not None
            for (index, name, operands), answer in zip(ready, answers, strict=True):
                values[index] = with_error_of(name, operands, answer)
    return [values[index] for index in (*graph.outputs, *graph.sums)]
