"""A graph in float32 with every operation correctly rounded: what its formula loses in any runtime."""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.activations.board.targets import Case
from stamm.activations.fused.double_float import computed


def correctly_rounded(case: Case, graphs: torch.dtype = torch.float32) -> list[Tensor]:
    """Value and gradients of a case, as `computed` has them.

    graphs   which ones: those with pairs of float32 numbers, or those of SHORT without
    """
    forward, backward = case.program.forward[graphs], case.program.backward[graphs]
    weight = torch.ones_like(case.given[0])
    parameters = [torch.tensor(p) for p in case.parameters]
    results = computed(forward, case.given, parameters)
    results += computed(backward, (weight, *case.given), parameters)
    return [torch.broadcast_to(result, weight.shape).contiguous() for result in results]
