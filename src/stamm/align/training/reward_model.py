"""A reward model as a reward: the head on the state at each answer's stop token.

Checked  tests/unit/align/test_reward_model.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stamm.align.rewards.config import reward_model_source
from stamm.align.rewards.reward import Answer
from stamm.align.training.log_probs import AnswerTokens
from stamm.base.errors import DataError
from stamm.chat.render import EncodedChat
from stamm.models.decoder import Decoder
from stamm.models.loading import OpenModel, open_model
from stamm.models.padding import length_batches, padded
from stamm.models.reward_head import load_head

BATCH_TOKENS = 16_384


def stop_place(supervised: Sequence[bool]) -> int:
    """The place of an answer's stop token: the last token that the model wrote.

    Raises   DataError when it wrote none.
    """
    for position in range(len(supervised) - 1, -1, -1):
        if supervised[position]:
            return position
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
    stop_positions = [stop_place(answer.supervised) for answer in answers]
    rewards = torch.zeros(len(answers), dtype=torch.float64)
    device = weight_D.device
    for rows in length_batches([stop + 1 for stop in stop_positions], batch_tokens):
        stops = [stop_positions[row] for row in rows]
        tokens_BT, _ = padded([answers[row].ids[: stop_positions[row] + 1] for row in rows])
        stop_B = torch.tensor(stops, device=device)
        rewards[rows] = (
            reward_at_stop(decoder, weight_D, tokens_BT.to(device), stop_B).double().cpu()
        )
    return rewards


class RewardModel:
    """A reward model in memory; a `BatchReward`. See `config.ModelReward`."""

    name = "reward_model"

    def __init__(self, model: OpenModel, weight_D: Tensor) -> None:
        self._model = model
        self._weight_D = weight_D

    @classmethod
    def load(cls, run: str) -> RewardModel:
        """The reward model of a run folder, or of one of its arms.

        Raises   RunError when there is no model, DataError when it has no head or is damaged.
        """
        source = reward_model_source(run)
        model = open_model(source, chat=True)
        weight_D = load_head(source.model, model.decoder.config.d_model, model.sha256)
        return cls(model, weight_D)

    def __call__(self, answer: Answer) -> float:
        """The reward of one answer."""
        (value,) = self.many((answer,))
        if isinstance(value, DataError):
            raise value
        return value

    def many(self, answers: Sequence[Answer]) -> list[float | DataError]:
        """The reward of each answer; DataError for one that is longer than the model's context."""
        encoded = [self._encode(answer) for answer in answers]
        fitting = [chat for chat in encoded if isinstance(chat, EncodedChat)]
        values = iter(answer_rewards(self._model.decoder, self._weight_D, fitting).tolist())
        return [
            chat_or_error if isinstance(chat_or_error, DataError) else next(values)
            for chat_or_error in encoded
        ]

    def _encode(self, answer: Answer) -> EncodedChat | DataError:
        whole = replace(answer.prompt, turns=(*answer.prompt.turns, answer.completion))
        try:
            chat = self._model.chat.encode(whole)
            length = stop_place(chat.supervised) + 1
        except DataError as error:
            return error
        limit = self._model.decoder.config.max_context
        if length > limit:
            return DataError(f"the answer ends at token {length}, the model reads {limit}")
        return chat
