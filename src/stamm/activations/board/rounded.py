"""A graph in float32 with every operation correctly rounded: what its formula loses in any runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stamm.activations.board.targets import Case
from stamm.activations.fused.graph import TRUTH, Graph

_NAMED: dict[str, Callable[..., Tensor]] = {
    "div": torch.true_divide,
    "neg": torch.negative,
    # The first of two equal zeros; NaN where an operand is.
    "minimum": lambda a, b: torch.where((b < a) | torch.isnan(b), b, a),
    "maximum": lambda a, b: torch.where((b > a) | torch.isnan(b), b, a),
}


def correctly_rounded(case: Case) -> list[Tensor]:
    """Value and gradients of a case.

    An operation on float32 numbers is computed in float64 and rounded once more: exactly so for
    + - * / and the square root, and but for one in 2**28 results of the other functions.
    """
    forward, backward = (
        graphs[torch.float32] for graphs in (case.program.forward, case.program.backward)
    )
    weight = torch.ones_like(case.given[0])
    parameters = [torch.tensor(p) for p in case.parameters]
    results = _computed(forward, case.given, parameters)
    results += _computed(backward, (weight, *case.given), parameters)
    return [torch.broadcast_to(result, weight.shape).contiguous() for result in results]


def _computed(graph: Graph, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    values: dict[int, Tensor] = {}
    for index in graph.needed():
        node = graph.nodes[index]
        operands = [values[taken] for taken in node.takes]
        match node.name:
            case "input":
                values[index] = inputs[int(node.number)]
            case "parameter":
                values[index] = parameters[int(node.number)]
            case "constant":
                values[index] = torch.tensor(node.number, dtype=torch.float64).float()
            case "where":
                values[index] = torch.where(operands[0], operands[1], operands[2])
            case "gather":
                values[index] = torch.tensor(node.row, dtype=torch.float64).float()[
                    operands[0].long()
                ]
            case name:
                function = _NAMED.get(name) or getattr(torch, name)
                wide = function(*(operand.double() for operand in operands))
                values[index] = wide if name in TRUTH else wide.float()
    return [values[index] for index in (*graph.outputs, *graph.sums)]
