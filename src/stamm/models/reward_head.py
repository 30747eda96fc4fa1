"""The linear head of a reward model: one number for each answer, from the state at its stop token.

Letters: N tokens of the batch, B answers, D model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

REWARD_HEAD = "reward_head.weight"
"""Name of the head's weight among the parameters of a decoder."""


class RewardHead(nn.Module):
    """weight · hidden, without bias: `weight` has shape (D,), and is 0 at first.

    Only differences of rewards are trained, so that a bias would have no gradient. With weight 0 every
    pair begins at the loss log 2.

    Checked  tests/unit/models/test_reward_head.py
    """

    def __init__(self, d_model: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model, device=device))

    def forward(self, hidden_ND: Tensor, answer_N: Tensor, answers: int) -> Tensor:
        """The reward of each answer, differentiable, float64, shape (B,).

        hidden_ND   final-normed hidden states
        answer_N    int64: the answer whose stop token is here, 0 to B-1; -1 elsewhere
        answers     B

        Edge        an answer without a stop token here has reward 0 and no gradient: where tokens are
                    divided over processes, add the rewards up
        """
        (places,) = torch.nonzero(answer_N >= 0, as_tuple=True)
        # Products and their sum in float64: no cast to 16 bits by autocast, no order of a kernel.
        found = (hidden_ND[places].double() * self.weight.double()).sum(dim=-1)
        rewards = torch.zeros(answers, dtype=torch.float64, device=hidden_ND.device)
        return rewards.index_add(0, answer_N[places], found)
