"""Bradley-Terry model of preferences: the loss and the accuracy of a reward model, pure functions.

    P(chosen preferred to rejected) = sigmoid(reward(chosen) - reward(rejected))

Source   Bradley and Terry 1952, Biometrika 39; for reward models Ouyang et al., arXiv 2203.02155,
         equation 1. With a margin: Touvron et al., arXiv 2307.09288, equation 2
Letters: B pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(
    chosen_reward_B: Tensor, rejected_reward_B: Tensor, *, margin: Tensor | float = 0.0
) -> Tensor:
    """Negative log-likelihood of each preference in nats, float64, shape (B,).

    loss = -log sigmoid(chosen - rejected - margin)

    margin   by how much the chosen one must be better: a number, or one per pair

    Edge     a constant added to both rewards changes nothing: only differences are learned. Stable
             for differences of any size; log 2 where both are equal.
    Checked  tests/unit/losses/test_bradley_terry.py
    """
    difference_B = chosen_reward_B.double() - rejected_reward_B.double()
    return -logsigmoid(difference_B - margin)


def bradley_terry_accuracy(chosen_reward_B: Tensor, rejected_reward_B: Tensor) -> Tensor:
    """1 for each pair whose chosen answer has the larger reward, 1/2 for a tie, float64, shape (B,)."""
    difference_B = chosen_reward_B.double() - rejected_reward_B.double()
    return (torch.sign(difference_B) + 1) / 2
