"""Replies of OpenAI-compatible endpoints: the distribution over digits, read from untrusted JSON.

Checked  tests/unit/align/test_endpoint_reply.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stamm.align.judge.request import JudgeReply
from stamm.base.errors import RunError
from stamm.base.json_text import parse_json

LONGEST_TEXT = 200
_CHARACTERS_PER_TOKEN = 4
_MOST_TOKENS = 10**9
_DIGIT = re.compile(r"[\s*`'\"]*([0-9])[\s*`'\".]*")


class MalformedReplyError(ValueError):
    """The body is not a chat completion; the message names what is wrong with it."""


def read_reply(
    body: bytes, digits: Sequence[str], *, sampled: bool, prompt_characters: int
) -> JudgeReply:
    """The reply that the body of an HTTP response holds.

    digits              possible answers
    sampled             take the digit of the text instead of probabilities
    prompt_characters   of the request: tokens are estimated from it, at 4 characters each, when the
                        endpoint does not count them

    The distribution is that of the first generated token that is not white space. Tokens that differ
    in white space alone ("7", " 7") are one digit.

    Raises   MalformedReplyError; RunError when log-probabilities were asked for and none came
    """
    try:
        plain = parse_json(body)
        choice = plain["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise MalformedReplyError("malformed JSON or not a chat completion") from None
    if content is not None and not isinstance(content, str):
        raise MalformedReplyError("its content is not text")
    text = (content or "")[:LONGEST_TEXT].encode("utf-8", "replace").decode()
    if sampled:
        found = _DIGIT.fullmatch(content or "")
        probabilities = {found[1]: 1.0} if found and found[1] in digits else {}
    else:
        probabilities = _distribution(_tokens(choice), digits)
    usage = plain.get("usage")
    return JudgeReply(
        probabilities,
        text,
        _count(usage, "prompt_tokens", prompt_characters),
        _count(usage, "completion_tokens", len(content or "")),
    )


def _tokens(choice: Mapping[str, Any]) -> list[Any]:
    log_probs = choice.get("logprobs")
    tokens = log_probs.get("content") if isinstance(log_probs, Mapping) else None
    if not isinstance(tokens, list):
        raise RunError(
            "the endpoint returns no log-probabilities",
            fix="Set judge.digits=sampled to take the digit that the judge writes, in another folder",
        )
    return tokens


def _distribution(tokens: list[Any], digits: Sequence[str]) -> dict[str, float]:
    for token in tokens:
        if not isinstance(token, Mapping):
            raise MalformedReplyError("a log-probability is not an object")
        if str(token.get("token", "")).strip():
            return _digits_of(token, digits)
    return {}


def _digits_of(token: Mapping[str, Any], digits: Sequence[str]) -> dict[str, float]:
    alternatives = token.get("top_logprobs") or []
    if not isinstance(alternatives, list):
        raise MalformedReplyError("top_logprobs is not a list")
    seen: dict[str, float] = {}
    for each in (token, *alternatives):
        log_prob = each.get("logprob") if isinstance(each, Mapping) else None
        if isinstance(log_prob, bool) or not isinstance(log_prob, int | float):
            raise MalformedReplyError("a log-probability is not a number")
        if math.isnan(log_prob) or log_prob > 1e-3:
            raise MalformedReplyError(f"a log-probability is {log_prob}")
        seen[str(each.get("token", ""))] = min(math.exp(log_prob), 1.0)
    found: dict[str, float] = {}
    for name, probability in seen.items():
        if name.strip() in digits:
            found[name.strip()] = found.get(name.strip(), 0.0) + probability
    total = math.fsum(found.values())
    if total > 1.001:
        raise MalformedReplyError(f"the probabilities of the digits add up to {total:.3g}")
    return dict(sorted(found.items()))


def _count(usage: object, name: str, characters: int) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        return math.ceil(characters / _CHARACTERS_PER_TOKEN)
    return value
