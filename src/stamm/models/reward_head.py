"""The linear head of a reward model: one number for each answer, from the state at its stop token.

A folder of a reward model has decoder.json and model.safetensors as any stored decoder, and
head.safetensors: the tensor "weight", float32, shape (D,), and in the metadata "sha256": that of the
decoder's weights that it was trained with and, after a space, that of its own numbers.

Letters: N tokens of the batch, B answers, D model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stamm.base.errors import DataError, visible
from stamm.base.files import atomic, sha256_bytes
from stamm.base.receipts import check_file
from stamm.runs.model_outputs import HEAD, WEIGHTS

WEIGHT = "weight"
_SHA256 = "sha256"

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
        (stops,) = torch.nonzero(answer_N >= 0, as_tuple=True)
        # Products and their sum in float64: no cast to 16 bits by autocast, no order of a kernel.
        stop_rewards = (hidden_ND[stops].double() * self.weight.double()).sum(dim=-1)
        rewards = torch.zeros(answers, dtype=torch.float64, device=hidden_ND.device)
        return rewards.index_add(0, answer_N[stops], stop_rewards)


def save_head(weight_D: Tensor, model: Path, weights_sha256: str) -> None:
    """Write the head of a reward model into its folder `model`.

    weights_sha256   of the model.safetensors that it belongs to
    """
    with atomic(model / HEAD) as temporary:
        weight = weight_D.detach().float().cpu().contiguous()
        # One entry: safetensors writes several in any order.
        hashes = f"{weights_sha256} {_hash(weight)}"
        save_file({WEIGHT: weight}, temporary, metadata={_SHA256: hashes})


def load_head(model: Path, d_model: int, weights_sha256: str) -> Tensor:
    """The head of the reward model in the folder `model`, float32, shape (D,).

    Raises   DataError when there is none, when it has another shape or a number that is not finite,
             when it was changed, and when it was trained with other weights.
    """
    path = model / HEAD
    if not path.is_file():
        raise DataError(f"{model} is not a reward model: it has no {HEAD}")
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            hashes = (file.metadata() or {}).get(_SHA256, "")
            weight_D: Tensor = file.get_tensor(WEIGHT)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if weight_D.shape != (d_model,) or not bool(weight_D.isfinite().all()):
        shape = tuple(weight_D.shape)
        raise DataError(f"{path} has weights of shape {shape}, not {d_model} finite numbers")
    weight_D = weight_D.float()
    trained_with, _, recorded = hashes.partition(" ")
    if recorded != _hash(weight_D):
        raise DataError(
            f"{path} has numbers with SHA-256 {_hash(weight_D)[:12]}, and its header names"
            f" {visible(recorded[:12])}",
            fix="The head was changed after it was written: restore it",
        )
    if trained_with != weights_sha256:
        raise DataError(
            f"{path} belongs to weights with SHA-256 {visible(trained_with[:12])}, and {WEIGHTS} has"
            f" {weights_sha256[:12]}",
            fix="Restore both files from the same run",
        )
    return weight_D


def _hash(weight_D: Tensor) -> str:
    return sha256_bytes(weight_D.numpy().tobytes())
