"""The plasticity probe: how fast a model, as training left it, still fits something new.

A copy of the decoder is trained on random targets by an AdamW without history. A model that lost
plasticity reduces this loss less in the same number of steps than an earlier checkpoint, or one that was
never trained. The loss is comparable between models of one vocabulary and one text.

Source   random targets from a checkpoint: Lyle et al. 2023, arXiv 2303.01486
Checked  tests/unit/observe/test_plasticity.py
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stamm.base.errors import DataError
from stamm.models.decoder import Decoder
from stamm.models.padding import padded

STEPS, RATE, TOKENS, LENGTH, SEED = 200, 1e-3, 512, 64, 20_230_314


@dataclass(frozen=True, kw_only=True)
class PlasticityLoss:
    """Mean nats of a random target: before the first step, after the last, and the mean of the steps' losses."""

    initial: float
    final: float
    mean: float
    tokens: int


def plasticity_loss(
    decoder: Decoder, sequences: Sequence[Sequence[int]], steps: int = STEPS
) -> PlasticityLoss:
    """The loss on fixed random targets before and after `steps` steps of a new AdamW; `decoder` is not changed.

    sequences   token ids; the inputs are the first LENGTH of each, TOKENS in all. Targets are uniform
                over the vocabulary and depend on SEED, the vocabulary and the number of tokens alone

    AdamW has a learning rate of RATE, no weight decay and PyTorch's other defaults. Every step has all
    tokens. All parameters are trained, shapes of activations included.

    Raises   DataError without a sequence of two tokens
    """
    inputs: list[list[int]] = []
    remaining = TOKENS
    for sequence in sequences:
        inputs.append(list(sequence[: min(len(sequence) - 1, LENGTH, remaining)]))
        remaining -= len(inputs[-1])
        if not remaining:
            break
    if not any(inputs):
        raise DataError("no text to probe plasticity on", fix="Give texts of at least two tokens")
    tokens_BT, own_BT = padded(inputs)
    drawn = torch.Generator().manual_seed(SEED)
    count = int(own_BT.sum())
    target_BT = torch.zeros_like(tokens_BT)
    target_BT[own_BT] = torch.randint(decoder.config.vocab_size, (count,), generator=drawn)
    learner = copy.deepcopy(decoder).requires_grad_(requires_grad=True)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    with torch.enable_grad():
        for step in range(steps + 1):
            loss = learner.losses(tokens_BT, target_BT, own_BT.float(), kept=float(count)).loss
            losses.append(float(loss.detach()))
            if step < steps:
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
    mean = sum(losses) / len(losses)
    return PlasticityLoss(initial=losses[0], final=losses[-1], mean=mean, tokens=count)
