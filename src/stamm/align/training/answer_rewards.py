"""The head of a reward model as a file, and the rewards of encoded answers.

    reward(answer) = weight · hidden[t]

where hidden[t] is the final-normed hidden state at the answer's stop token, the last token that the
assistant writes. A folder of a reward model has decoder.json and model.safetensors as any stored
decoder, and head.safetensors: the tensor "weight", float32, shape (D,), and in the metadata "sha256": that
of the decoder's weights that it was trained with and, after a space, that of its own numbers. `stamm run
align.reward` trains one (`align.training.reward_objective`).

Letters: B answers, T tokens, D model.
Checked  tests/unit/align/test_reward_model.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stamm.align.training.log_probs import AnswerTokens, length_batches
from stamm.base.errors import DataError, visible
from stamm.base.files import atomic, sha256_bytes
from stamm.models.decoder import Decoder
from stamm.runs.model_outputs import HEAD, WEIGHTS

WEIGHT = "weight"
_SHA256 = "sha256"
BATCH_TOKENS = 16_384


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


def stop_place(supervised: Sequence[bool]) -> int:
    """The place of an answer's stop token: the last token that the model wrote.

    Raises   DataError when it wrote none.
    """
    for place in range(len(supervised) - 1, -1, -1):
        if supervised[place]:
            return place
    raise DataError("the answer has no token of the assistant")


def reward_at_stop(decoder: Decoder, weight_D: Tensor, tokens_BT: Tensor, stop_B: Tensor) -> Tensor:
    """The reward of each row, differentiable, float32 or wider, shape (B,).

    stop_B   place of each row's stop token, int64; what follows it is padding

    Edge     causal attention: padding on the right does not reach a stop token
    """
    hidden_BTD = decoder.model(tokens_BT)
    rows_B = torch.arange(len(stop_B), device=stop_B.device)
    wide = torch.promote_types(weight_D.dtype, torch.float32)
    reward_B: Tensor = hidden_BTD[rows_B, stop_B].to(wide) @ weight_D.to(wide)
    return reward_B


@torch.no_grad()
def answer_rewards(
    decoder: Decoder,
    weight_D: Tensor,
    answers: Sequence[AnswerTokens],
    batch_tokens: int = BATCH_TOKENS,
) -> Tensor:
    """The reward of each encoded answer, float64, on the CPU, shape (len(answers),).

    batch_tokens   of one forward pass, padding included; a longer answer runs alone

    Edge     answers of similar length run together; a reward depends on its batch only by rounding
    Raises   DataError for an answer without a token of the assistant
    """
    places = [stop_place(answer.supervised) for answer in answers]
    found = torch.zeros(len(answers), dtype=torch.float64)
    device = weight_D.device
    for rows in length_batches([place + 1 for place in places], batch_tokens):
        stops = [places[row] for row in rows]
        tokens_BT = torch.zeros(len(rows), max(stops) + 1, dtype=torch.int64)
        for number, (row, stop) in enumerate(zip(rows, stops, strict=True)):
            tokens_BT[number, : stop + 1] = torch.tensor(list(answers[row].ids[: stop + 1]))
        stop_B = torch.tensor(stops, device=device)
        found[rows] = reward_at_stop(decoder, weight_D, tokens_BT.to(device), stop_B).double().cpu()
    return found


def _hash(weight_D: Tensor) -> str:
    return sha256_bytes(weight_D.numpy().tobytes())
