"""A judge on this machine: probabilities of digit tokens from logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stamm.align.judge.config import LocalJudge
from stamm.align.judge.job import LocalModel, load_local_judge
from stamm.align.judge.judge import COMPARISON, RATING, JudgeReply, JudgeRequest, NoReply
from stamm.chat.conversation import Conversation, UserTurn
from stamm.models.loading import OpenModel, open_model
from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    return root


@pytest.fixture(scope="module")
def model(run: Path) -> OpenModel:
    return open_model(run, chat=True)


def ask(judge: LocalModel, *requests: JudgeRequest) -> list[JudgeReply | NoReply]:
    found: dict[int, JudgeReply | NoReply] = {}
    judge.answer(requests, found.__setitem__)
    return [found[place] for place in range(len(requests))]


def test_probabilities_are_the_softmax_at_the_first_token_of_the_answer(model: OpenModel) -> None:
    request = JudgeRequest("Judge.", "Rate.", RATING, "s")
    (reply,) = ask(LocalModel(model), request)
    turns = (UserTurn("Rate."),)
    ids = model.chat.encode(Conversation(turns=turns, system="Judge."), prompt=True).ids
    with torch.no_grad():
        probability = model.decoder(torch.tensor([ids]))[0, -1].double().softmax(-1)
    assert isinstance(reply, JudgeReply)
    for digit in RATING:
        (token,) = model.tokenizer.encode(digit)
        assert reply.probabilities[digit] == pytest.approx(float(probability[token]), rel=1e-6)
    assert reply.prompt_tokens == len(ids)
    assert 0 < reply.mass < 1


def test_a_reply_does_not_depend_on_the_other_requests(model: OpenModel) -> None:
    judge = LocalModel(model)
    one, two = (JudgeRequest("s", text, COMPARISON, "s") for text in ("a", "a longer one"))
    assert ask(judge, one, two) == [*ask(judge, one), *ask(judge, two)]


def test_a_question_longer_than_the_context_has_no_reply(model: OpenModel) -> None:
    limit = model.decoder.config.max_context
    (reply,) = ask(LocalModel(model), JudgeRequest("s", "a b c " * limit, RATING, "s"))
    assert isinstance(reply, NoReply)
    assert f"exceed the judge's context of {limit:,}" in reply.reason


def test_the_identity_is_that_of_weights_and_chat_format(run: Path, model: OpenModel) -> None:
    judge = load_local_judge(LocalJudge(model=str(run)))
    assert judge.identity["weights_sha256"] == model.sha256
    assert judge.identity["chat_format_sha256"] == model.chat.sha256
    assert str(run) not in str(judge.identity)
