"""Experts of a feed-forward block: the router, their weights, and decoding that multiplies the acting ones only.

Letters: B rows (one new token each), E experts, R routed experts, C units, D model.

Checked  tests/unit/models/test_experts.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.models.config import Experts


class Router(nn.Linear):
    """Weights of the experts of a block from its input: 1 for a shared one, r p_e or 0 for a routed one (`Experts`)."""

    def __init__(self, d_model: int, experts: Experts) -> None:
        super().__init__(d_model, experts.routed, bias=False)
        self.experts = experts

    def forward(self, x: Tensor) -> Tensor:
        """The weights, (..., E), of the dtype of the scores."""
        scores = F.linear(x, self.weight)
        return expert_weights(scores, self.experts)


def expert_weights(scores: Tensor, experts: Experts) -> Tensor:
    """The weight of every expert, (..., E), from the scores of the routed ones, (..., R).

    Of equal scores either may be chosen. The softmax is computed in float32.
    """
    wide = scores.float()
    kept = torch.full_like(wide, -torch.inf)
    chosen = wide.topk(experts.chosen, dim=-1).indices
    kept = kept.scatter(-1, chosen, wide.gather(-1, chosen))
    weights = experts.chosen * kept.softmax(-1)
    shared = weights.new_ones(*weights.shape[:-1], experts.shared)
    return torch.cat([shared, weights], -1).to(scores.dtype)


def weighted_units(units: Tensor, weights: Tensor) -> Tensor:
    """The outputs of the units, (..., C), times the weights of their experts, (..., E)."""
    by_expert = units.view(*units.shape[:-1], weights.shape[-1], -1)
    return (by_expert * weights[..., None].to(units.dtype)).view(units.shape)


class ExpertStep:
    """A block with experts for one new token of each row: only the slices of acting experts are multiplied.

    router     of the block
    function   its activation
    products   of each expert: x to x W' for up, or gate and up, and for down

    multiplied   (rows, experts) pairs computed so far
    """

    def __init__(
        self,
        router: Router,
        function: Callable[..., Tensor],
        products: Sequence[Sequence[Callable[[Tensor], Tensor]]],
    ) -> None:
        self._router, self._function, self._products = router, function, products
        self.multiplied = 0

    def __call__(self, x_BD: Tensor) -> Tensor:
        """The block's output, (B, D)."""
        weights_BE = self._router(x_BD)
        acts_BE = weights_BE != 0
        y_BD = torch.zeros_like(x_BD)
        for expert in acts_BE.any(0).nonzero().flatten().tolist():
            rows = acts_BE[:, expert].nonzero().flatten() if len(x_BD) > 1 else slice(None)
            x = x_BD[rows]
            *first, down = self._products[expert]
            units = self._function(*(multiply(x) for multiply in first))
            y_BD[rows] += down(units * weights_BE[rows, expert, None])
            self.multiplied += len(x)
        return y_BD
