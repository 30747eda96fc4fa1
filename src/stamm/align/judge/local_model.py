"""A judge on this machine: probabilities of the digit tokens from the logits of a model.

Each question is computed alone, so that a reply does not depend on the others.

Checked  tests/unit/align/test_local_judge.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stamm.align.judge.judge_config import LocalJudge
from stamm.align.judge.judge_prompt import WORDING
from stamm.align.judge.request import RATING, JudgeReply, JudgeRequest, NoReply, Received
from stamm.align.model_source import ChatModel, find_model, load_chat_model
from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn


class LocalModel:
    """A JudgeModel that computes its replies."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._digit_ids = _digit_ids(model)
        self.identity: Mapping[str, object] = {
            "kind": "local",
            "weights_sha256": model.weights_sha256,
            "chat_format_sha256": model.chat.sha256,
            "wording": WORDING,
        }

    @torch.no_grad()
    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        """As JudgeModel.answer."""
        decoder = self._model.decoder
        limit = decoder.config.max_context
        for place, request in enumerate(requests):
            ids = self._encode(request)
            if len(ids) > limit:
                reason = f"{len(ids):,} tokens exceed the judge's context of {limit:,}"
                received(place, NoReply(reason))
                continue
            hidden_BTD = decoder.model(torch.tensor([ids]))
            logits_V = decoder.lm_head(hidden_BTD[0, -1]).double()
            probability_V = logits_V.softmax(-1)
            found = {
                digit: float(probability_V[self._digit_ids[digit]]) for digit in request.digits
            }
            text = self._model.chat.decode([int(logits_V.argmax())])
            received(place, JudgeReply(found, text[:200], len(ids), 1))

    def _encode(self, request: JudgeRequest) -> list[int]:
        turns = (UserTurn(request.user),)
        conversation = Conversation(turns=turns, system=request.system)
        return self._model.chat.encode(conversation, prompt=True).ids


def load_local_judge(config: LocalJudge) -> LocalModel:
    """The judge of a configuration.

    Raises   as `find_model` and `load_chat_model`; DataError when two digits begin with one token
    """
    return LocalModel(load_chat_model(find_model(config.model, config.arm or None)))


def _digit_ids(model: ChatModel) -> dict[str, int]:
    """The token with which an answer begins that consists of a digit."""

    def first_of(text: str) -> int:
        turns = (UserTurn("?"), AssistantTurn((Response(text),)))
        prompt = model.chat.encode(Conversation(turns=turns[:1]), prompt=True).ids
        return model.chat.encode(Conversation(turns=turns)).ids[len(prompt)]

    found = {digit: first_of(digit) for digit in RATING}
    if len(set(found.values())) < len(RATING):
        raise DataError(
            "the judge's tokenizer begins several of the digits 1 to 9 with the same token",
            fix="Use another judge",
        )
    return found
