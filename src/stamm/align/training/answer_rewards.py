"""Rewards of encoded answers by a reward model.

    reward(answer) = weight · hidden[t]

where hidden[t] is the final-normed hidden state at the answer's stop token, the last token that the
assistant writes. `stamm run align.reward` trains a reward model (`align.training.reward_objective`); its
head is a file (`models.reward_head`).

Letters: B answers, T tokens, D model.
Checked  tests/unit/align/test_reward_model.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stamm.align.training.log_probs import AnswerTokens, length_batches
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder

BATCH_TOKENS = 16_384


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
