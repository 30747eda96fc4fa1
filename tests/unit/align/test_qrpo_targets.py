"""Targets of QRPO on a batch: a policy of the references, the answer among them or not."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from stamm.align.losses.preference_loss import LossInputs
from stamm.align.losses.qrpo import QRPO
from stamm.losses.preference_types import Ties, Transform


def batch(rewards: list[float], extra: int = 0) -> LossInputs:
    """All answers of one prompt, each with the rewards of all as references and `extra` missing ones."""
    count = len(rewards)
    row = torch.tensor([*rewards, *[math.nan] * extra], dtype=torch.float64)
    return LossInputs(
        log_prob_B=torch.zeros(count, dtype=torch.float64),
        reference_B=torch.zeros(count, dtype=torch.float64),
        reward_B=torch.tensor(rewards, dtype=torch.float64),
        ref_reward_BN=row.expand(count, count + extra),
        length_B=torch.ones(count, dtype=torch.int64),
        num_examples=count,
    )


def log_ratios(loss: QRPO, given: LossInputs) -> list[float]:
    """The log-ratios that the loss asks for."""
    found: list[float] = loss.losses(given).metrics["reward/target"].tolist()
    return found


@pytest.mark.parametrize("transform", get_args(Transform))
@pytest.mark.parametrize("ties", get_args(Ties))
@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0, 3.0]])
def test_the_empirical_partition_makes_answers_among_their_references_a_policy(
    rewards: list[float], ties: Ties, transform: Transform
) -> None:
    loss = QRPO(beta=0.1, ties=ties, partition="empirical", transform=transform, leave_one_out=True)
    ratios = log_ratios(loss, batch(rewards, extra=2))
    assert sum(math.exp(each) for each in ratios) / len(rewards) == pytest.approx(1, rel=1e-9)
    # From the definition: the quantile among the others, kept from 0 and 1 where f is infinite.
    others = len(rewards) - 1
    values = []
    for one, reward in enumerate(rewards):
        rest = rewards[:one] + rewards[one + 1 :]
        equal = sum(each == reward for each in rest) * (1.0 if ties == "le" else 0.5)
        q = (sum(each < reward for each in rest) + equal) / others
        low, high = 1 / others, 1 - 1 / others
        kept = torch.tensor(min(max(q, low), high), dtype=torch.float64)
        values.append(
            {
                "identity": q,
                "log": math.log(max(q, low)),
                "square": q * q,
                "sqrt": math.sqrt(q),
                "probit": float(torch.special.ndtri(kept)),
            }[transform]
        )
    log_z = math.log(sum(math.exp(each / 0.1) for each in values) / len(rewards))
    assert ratios == pytest.approx([each / 0.1 - log_z for each in values], rel=1e-9)


def test_the_grid_of_a_quantile_among_the_others_has_one_step_less() -> None:
    rewards = [3.0, 1.0, 0.0, 2.0]
    ratios = log_ratios(QRPO(beta=0.5, partition="grid", leave_one_out=True), batch(rewards))
    log_z = math.log(sum(math.exp(j / 3 / 0.5) for j in range(4)) / 4)
    assert ratios == pytest.approx([q / 3 / 0.5 - log_z for q in (3, 1, 0, 2)], rel=1e-9)
    assert sum(math.exp(each) for each in ratios) / 4 == pytest.approx(1, rel=1e-9)
