"""Replies of OpenAI-compatible endpoints: the distribution over digits, read from untrusted JSON.

Each key is read, known to change nothing, or counted as unknown. A reply that is something else than
an answer (a refusal, a tool call, a filtered or cut text) is unusable, by its kind.

Source   the schemas of OpenAI, Azure OpenAI, vLLM 0.14, SGLang, TGI, llama.cpp's server, Ollama,
         OpenRouter, LiteLLM, DeepSeek, Mistral and Groq
Checked  tests/unit/align/test_endpoint_reply.py, tests/unit/align/test_reply_schemas.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stamm.align.judge.judge import JudgeReply
from stamm.base.errors import RunError, visible
from stamm.base.json_text import parse_json
from stamm.base.known_keys import KnownKeys, RefusedKey

LONGEST_TEXT = 200
_SHOWN = 120
_CHARACTERS_PER_TOKEN = 4
_MOST_TOKENS = 10**9
_DIGIT = re.compile(r"[\s*`'\"]*([0-9])[\s*`'\".]*")
_TOOLS = RefusedKey(meaning="calls a tool", neutral=([], {}))
_MEDIA = RefusedKey(meaning="answers with something else than text", neutral=([], {}))
_STREAMED = RefusedKey(meaning="is a piece of a stream", neutral=({},))
COMPLETION_KEYS = KnownKeys(
    reader="chat completions",
    read=frozenset({"choices", "usage", "error", "object"}),
    harmless=frozenset(
        {
            "id", "created", "model", "system_fingerprint", "service_tier", "metadata", "moderation",
            "request_id", "provider", "warnings",
            # Azure: what its filter found in the prompt; a filtered prompt is an error
            "prompt_filter_results", "prompt_annotations",
            # engines: tokens of the prompt, timings, debugging
            "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params",
            "timings", "__verbose", "_debug_info", "sglext", "time_info", "x_groq",
            "usage_breakdown", "citations", "search_results", "openrouter_metadata",
        }
    ),
)  # fmt: skip
CHOICE_KEYS = KnownKeys(
    reader="choices",
    read=frozenset({"message", "logprobs", "finish_reason", "error", "content_filter_results"}),
    harmless=frozenset(
        {
            "index", "native_finish_reason", "stop_reason", "matched_stop", "token_ids", "hidden_states",
            "seed", "content_filter_offsets", "routed_experts", "provider_specific_fields",
        }
    ),
    refused={"delta": _STREAMED},
)  # fmt: skip
MESSAGE_KEYS = KnownKeys(
    reader="messages",
    read=frozenset(
        {
            "role", "content", "reasoning", "reasoning_content", "reasoning_details", "thinking",
            "thinking_blocks",
        }
    ),
    harmless=frozenset(
        {"name", "annotations", "citations", "context", "provider_specific_fields", "prefix", "tool_call_id"}
    ),
    refused={
        "refusal": RefusedKey(meaning="declines to answer", neutral=("",)),
        "tool_calls": _TOOLS,
        "function_call": _TOOLS,
        "executed_tools": _TOOLS,
        "audio": _MEDIA,
        "images": _MEDIA,
    },
)  # fmt: skip
LOG_PROB_KEYS = KnownKeys(
    reader="log-probabilities",
    read=frozenset({"token", "logprob", "top_logprobs"}),
    harmless=frozenset({"bytes", "id", "rank", "special", "text"}),
)
_REASONING = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks")
_KINDS = {
    "refusal": "refusal", "tool_calls": "tool call", "function_call": "tool call",
    "executed_tools": "tool call", "audio": "not text", "images": "not text",
}  # fmt: skip
_FINISHED = frozenset(
    {"stop", "eos", "eos_token", "end_turn", "stop_sequence", "stop_token", "complete", "", "none"}
)
_CUT = frozenset({"length", "max_tokens", "model_length", "model_context_window_exceeded"})
_FINISH_KINDS = {
    "content_filter": "content filter", "safety": "content filter", "recitation": "content filter",
    "refusal": "refusal", "tool_calls": "tool call", "function_call": "tool call", "tool_use": "tool call",
}  # fmt: skip
_FAILED = frozenset({"error", "abort", "cancelled", "insufficient_system_resource"})
"""Values of finish_reason, in lower case, of generations that may succeed when asked again."""


class MalformedReplyError(ValueError):
    """The body is not a whole chat completion; the message names what is wrong with it."""


class ReportedError(ValueError):
    """An error that came with HTTP 200. `status` is its HTTP status; 0 where it names none."""

    def __init__(self, body: object, status: int) -> None:
        super().__init__(error_text(body) or "without a message")
        self.status = status


class UnusableReplyError(ValueError):
    """A chat completion without an answer. `kind` is counted, `spent` has the tokens that it cost."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.spent = JudgeReply({})


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

    Raises   MalformedReplyError, ReportedError and UnusableReplyError; RunError when the endpoint
             streams, or log-probabilities were asked for and none came
    """
    if body.lstrip()[:5] == b"data:":
        raise _streams()
    try:
        plain = parse_json(body)
    except (ValueError, RecursionError):
        raise MalformedReplyError("malformed JSON") from None
    choice = _choice(plain)
    message = choice["message"]
    usage = plain.get("usage")
    text, thought = _content(message)
    spent = JudgeReply(
        {},
        text[:LONGEST_TEXT].encode("utf-8", "replace").decode(),
        _count(usage, "prompt_tokens", prompt_characters),
        _count(usage, "completion_tokens", len(text)),
        tuple(_unknown(plain, choice, message)),
    )
    try:
        _check_answered(plain["choices"], message)
        if sampled:
            if _finish_reason(choice) in _CUT:
                raise UnusableReplyError("cut", f"{text[:_SHOWN]!r} ends at the limit of tokens")
            match = _DIGIT.fullmatch(text)
            return replace(
                spent,
                probabilities={match[1]: 1.0} if match and match[1] in digits else {},
            )
        if thought:
            raise UnusableReplyError(
                "reasoning", "log-probabilities are those of a reasoning in front of the answer"
            )
        return replace(spent, probabilities=_distribution(_tokens(choice), text, digits))
    except UnusableReplyError as error:
        error.spent = spent
        raise


def error_text(body: object) -> str:
    """The message of an error's body, in each of the forms of OpenAI, FastAPI, vLLM, TGI and Ollama."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        named = next((k for k in ("error", "message", "detail", "msg") if body.get(k)), None)
        if named is None:
            return ""
        body = body[named]
    return body if isinstance(body, str) else ""


def _choice(plain: object) -> dict[str, Any]:
    """The only choice, checked to have a message."""
    if not isinstance(plain, dict):
        raise MalformedReplyError("not a JSON object")
    if plain.get("object") == "chat.completion.chunk":
        raise _streams()
    if plain.get("error") or plain.get("object") == "error":
        raise ReportedError(plain, _status(plain))
    choices = plain.get("choices")
    if not isinstance(choices, list):
        keys = ", ".join(visible(str(key), 20) for key in list(plain)[:8]) or "none"
        raise MalformedReplyError(f"not a chat completion, its keys are {keys}")
    choice = choices[0] if choices else None
    if not isinstance(choice, dict):
        raise MalformedReplyError("without choices")
    if next(CHOICE_KEYS.not_honoured(choice), None) is not None:
        raise _streams()
    reason = _finish_reason(choice)
    if choice.get("error") or reason in _FAILED:
        body = choice if choice.get("error") else {"error": f"finish_reason = {reason}"}
        raise ReportedError(body, _status(choice))
    if not isinstance(choice.get("message"), dict):
        raise MalformedReplyError("a choice without a message")
    return choice


def _status(plain: Mapping[str, Any]) -> int:
    """The HTTP status that an error names; 0 without one."""
    error = plain.get("error")
    for named in (error, plain):
        code = str(named.get("code", named.get("status"))) if isinstance(named, Mapping) else ""
        if re.fullmatch("[45][0-9]{2}", code):
            return int(code)
    return 0


def _streams() -> RunError:
    return RunError(
        "the endpoint streams its reply, which was not asked for",
        fix="Switch streaming off there",
    )


def _finish_reason(choice: Mapping[str, Any]) -> str:
    return str(choice.get("finish_reason")).lower()


def _content(message: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of a message, and whether it has a reasoning; a list of parts is read as its texts."""
    content = message.get("content")
    thought = any(message.get(key) for key in _REASONING)
    if content is None or isinstance(content, str):
        return content or "", thought
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise MalformedReplyError("its content is not text")
    texts: list[str] = []
    for part in content:
        kind, text = part.get("type"), part.get("text")
        if kind in ("thinking", "reasoning"):
            thought = True
        elif kind not in ("text", "output_text") or not isinstance(text, str):
            raise MalformedReplyError(f"its content has a part of type {visible(repr(kind), 40)}")
        else:
            texts.append(text)
    return "".join(texts), thought


def _check_answered(choices: Sequence[Mapping[str, Any]], message: Mapping[str, Any]) -> None:
    """Raise UnusableReplyError for a message that is something else than one answer."""
    if len(choices) > 1:
        raise UnusableReplyError("several choices", f"{len(choices)} choices, one was asked for")
    for key in MESSAGE_KEYS.not_honoured(message):
        refused = MESSAGE_KEYS.refused[key]
        shown = visible(repr(message[key]), _SHOWN)
        raise UnusableReplyError(_KINDS[key], f"the judge {refused.meaning}: {key} = {shown}")
    if (role := message.get("role", "assistant")) not in ("assistant", "model", None, ""):
        raise UnusableReplyError("not the judge's", f"a message of the {visible(str(role), 40)}")
    (choice,) = choices
    log_probs = choice.get("logprobs")
    if isinstance(log_probs, Mapping) and log_probs.get("refusal"):
        raise UnusableReplyError("refusal", "the judge declines to answer")
    reason = _finish_reason(choice)
    if kind := _FINISH_KINDS.get(reason):
        raise UnusableReplyError(kind, f"finish_reason = {reason}")
    filters = choice.get("content_filter_results")
    for name, result in filters.items() if isinstance(filters, Mapping) else ():
        if isinstance(result, Mapping) and result.get("filtered") is True:
            raise UnusableReplyError("content filter", f"filtered for {visible(str(name), 40)}")


def _unknown(
    plain: Mapping[str, Any], choice: Mapping[str, Any], message: Mapping[str, Any]
) -> Iterator[str]:
    """Names of the keys with unknown meaning, and an unknown finish_reason."""
    yield from COMPLETION_KEYS.unknown(plain)
    yield from (f"choices.{key}" for key in CHOICE_KEYS.unknown(choice))
    yield from (f"message.{key}" for key in MESSAGE_KEYS.unknown(message))
    log_probs = choice.get("logprobs")
    tokens = log_probs.get("content") if isinstance(log_probs, Mapping) else None
    if isinstance(tokens, list) and tokens and isinstance(tokens[0], Mapping):
        yield from (f"logprobs.{key}" for key in LOG_PROB_KEYS.unknown(tokens[0]))
    reason = _finish_reason(choice)
    if reason not in _FINISHED | _CUT | _FINISH_KINDS.keys():
        yield f"finish_reason = {visible(reason, 40)}"


def _tokens(choice: Mapping[str, Any]) -> list[Any]:
    log_probs = choice.get("logprobs")
    tokens = log_probs.get("content") if isinstance(log_probs, Mapping) else None
    if not isinstance(tokens, list):
        raise _no_log_probs("log-probabilities")
    return tokens


def _no_log_probs(what: str) -> RunError:
    return RunError(
        f"the endpoint returns no {what}",
        fix="Set judge.digits=sampled to take the digit that the judge writes, in another folder",
    )


def _distribution(tokens: list[Any], text: str, digits: Sequence[str]) -> dict[str, float]:
    for token in tokens:
        if not isinstance(token, Mapping):
            raise MalformedReplyError("a log-probability is not an object")
        if written := str(token.get("token", "")).strip():
            begin = text.lstrip()
            if written in digits and not begin.startswith(written):
                raise UnusableReplyError(
                    "other tokens",
                    f"the first token is {written!r}, and the text {visible(begin[:40])!r}",
                )
            return _digits_of(token, digits)
    return {}


def _digits_of(token: Mapping[str, Any], digits: Sequence[str]) -> dict[str, float]:
    alternatives = token.get("top_logprobs") or []
    if not isinstance(alternatives, list):
        raise MalformedReplyError("top_logprobs is not a list")
    if not alternatives:
        raise _no_log_probs("alternatives to a token (top_logprobs)")
    seen: dict[tuple[str, str, float], float] = {}
    names = {entry.get("token") for entry in alternatives if isinstance(entry, Mapping)}
    for entry in alternatives if token.get("token") in names else (token, *alternatives):
        log_prob = entry.get("logprob") if isinstance(entry, Mapping) else None
        if isinstance(log_prob, bool) or not isinstance(log_prob, int | float):
            raise MalformedReplyError("a log-probability is not a number")
        if math.isnan(log_prob) or log_prob > 1e-3:
            raise MalformedReplyError(f"a log-probability is {log_prob}")
        # Several tokens can have one text.
        name, number = str(entry.get("token", "")), str(entry.get("id"))
        seen[name, number, log_prob] = min(math.exp(log_prob), 1.0)
    total: dict[str, float] = {}
    for (name, _, _), probability in seen.items():
        if name.strip() in digits:
            total[name.strip()] = total.get(name.strip(), 0.0) + probability
    mass = math.fsum(total.values())
    if mass > 1.001:
        raise MalformedReplyError(f"the probabilities of the digits add up to {mass:.3g}")
    return dict(sorted(total.items()))


def _count(usage: object, name: str, characters: int) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        return math.ceil(characters / _CHARACTERS_PER_TOKEN)
    return value
