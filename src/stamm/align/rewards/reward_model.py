"""A reward model as a reward: the head on the state at each answer's stop token.

Checked  tests/unit/align/test_reward_model.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from stamm.align.model_source import ChatModel, find_model, load_chat_model
from stamm.align.rewards.reward import Answer
from stamm.align.rewards.sources import reward_model_folder
from stamm.align.training.answer_rewards import answer_rewards, stop_place
from stamm.base.errors import DataError
from stamm.chat.render import EncodedChat
from stamm.models.reward_head import load_head


class RewardModel:
    """A reward model in memory; a `BatchReward`. See `reward_config.ModelReward`."""

    name = "reward_model"

    def __init__(self, model: ChatModel, weight_D: Tensor) -> None:
        self._model = model
        self._weight_D = weight_D

    @classmethod
    def load(cls, run: str) -> RewardModel:
        """The reward model of a run folder, or of one of its arms.

        Raises   RunError when there is no model, DataError when it has no head or is damaged.
        """
        reward_model_folder(run)  # before the weights are read: most models are not reward models
        source = find_model(run)
        model = load_chat_model(source)
        weight_D = load_head(source.model, model.decoder.config.d_model, model.weights_sha256)
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
        fitting = [each for each in encoded if isinstance(each, EncodedChat)]
        values = iter(answer_rewards(self._model.decoder, self._weight_D, fitting).tolist())
        return [each if isinstance(each, DataError) else next(values) for each in encoded]

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
