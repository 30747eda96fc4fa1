"""Bodies of chat completions: distributions over digits, and everything that is not one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from stamm.align.judge.endpoint_reply import MalformedReplyError, read_reply
from stamm.align.judge.judge import COMPARISON, RATING, JudgeReply
from stamm.base.errors import RunError
from tests.judge_server import completion


def read(body: Any, *, sampled: bool = False, digits: tuple[str, ...] = RATING) -> JudgeReply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_reply(data, digits, sampled=sampled, prompt_characters=400)


def test_the_score_is_the_mean_weighted_by_probability() -> None:
    reply = read(completion({"7": 0.6, "8": 0.2, "The": 0.2}))
    assert reply.probabilities == pytest.approx({"7": 0.6, "8": 0.2})
    assert reply.mass == pytest.approx(0.8)
    assert reply.mean() == pytest.approx((7 * 0.6 + 8 * 0.2) / 0.8)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.text) == (100, 1, "7")


def test_tokens_with_white_space_are_the_same_digit_and_others_are_none() -> None:
    reply = read(completion({" 7": 0.3, "7": 0.3, "77": 0.2, "seven": 0.1, "0": 0.1}))
    assert reply.probabilities == pytest.approx({"7": 0.6})
    assert read(completion({"3": 0.5, "1": 0.4}), digits=COMPARISON).mass == pytest.approx(0.4)


def test_white_space_before_the_digit_is_passed() -> None:
    body = json.loads(completion({"5": 0.9}))
    tokens = body["choices"][0]["logprobs"]["content"]
    tokens.insert(0, {"token": "\n", "logprob": -0.1, "top_logprobs": []})
    assert read(body).probabilities == pytest.approx({"5": 0.9})


def test_prose_has_no_digits_whatever_follows() -> None:
    body = json.loads(completion({"I": 0.9, "9": 0.01}, text="I rate it 9"))
    body["choices"][0]["logprobs"]["content"].append({"token": "9", "logprob": 0.0})
    reply = read(body)
    assert reply.mass == pytest.approx(0.01)
    assert reply.text == "I rate it 9"


@pytest.mark.parametrize(
    ("text", "digit"),
    [
        ("7", "7"),
        (" **7**.\n", "7"),
        ("7/9", None),
        ("17", None),
        ("", None),
        ("I say 7", None),
        ("0", None),
    ],
)
def test_sampled_digits_are_the_whole_text(text: str, digit: str | None) -> None:
    reply = read({"choices": [{"message": {"content": text}}]}, sampled=True)
    assert reply.probabilities == ({digit: 1.0} if digit else {})


def test_tokens_are_estimated_where_the_endpoint_does_not_count() -> None:
    body = json.loads(completion({"5": 0.9}))
    body["usage"] = {"prompt_tokens": -4, "completion_tokens": "many"}
    reply = read(body)
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 1)


def test_missing_log_probabilities_stop_the_run() -> None:
    for missing in (None, {}, {"content": None}):
        body = {"choices": [{"message": {"content": "7"}, "logprobs": missing}]}
        with pytest.raises(RunError, match=r"no log-probabilities.*digits=sampled"):
            read(body)


def test_an_empty_generation_is_prose() -> None:
    body = {"choices": [{"message": {"content": None}, "logprobs": {"content": []}}]}
    assert read(body).mass == 0


def _logprob(value: Any) -> Any:
    body = json.loads(completion({"5": 0.9}))
    body["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] = value
    return body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"[]", b"{}", b'{"choices": []}', b"[" * 100_000, b"\xff\xfe",
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"content": "7"}, "logprobs": {"content": [3]}}]},
        _logprob("x"), _logprob(None), _logprob(True), _logprob(0.5), _logprob(math.nan),
        completion({"5": 0.9, "6": 0.9}),
    ],
)  # fmt: skip
def test_malformed_bodies_are_one_kind_of_error(body: Any) -> None:
    with pytest.raises(MalformedReplyError):
        read(body)


def test_text_is_cut_and_has_no_lone_surrogates() -> None:
    body = {"choices": [{"message": {"content": "\ud800" + "x" * 10_000}}]}
    text = read(body, sampled=True).text
    assert len(text) == 200
    assert text.encode().startswith(b"?x")
