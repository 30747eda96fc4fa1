"""Replies in the published schemas of endpoints, with every optional key, through a local HTTP server.

Keys and values are those of the schemas of openai-python 3.57 (types/chat/chat_completion.py), Azure
OpenAI (content filter fields), vLLM (entrypoints/openai/chat_completion/protocol.py), SGLang
(entrypoints/openai/protocol.py), llama.cpp (tools/server/server-task.cpp), Ollama (openai/openai.go),
OpenRouter (API reference), LiteLLM (types/utils.py, with Anthropic behind it), Mistral, Groq and DeepSeek.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from stamm.align.judge.config import EndpointJudge
from stamm.align.judge.judge import JudgeReply, NoReply
from stamm.base.errors import ConfigError, RunError
from tests.judge_server import Scripted, serve
from tests.unit.align.test_judge_endpoint import FAST, ask, requests

TOKEN = {
    "token": "7", "logprob": math.log(0.6), "bytes": [55],
    "top_logprobs": [
        {"token": "7", "logprob": math.log(0.6), "bytes": [55]},
        {"token": "8", "logprob": math.log(0.3), "bytes": [56]},
    ],
}  # fmt: skip
HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": "m"}
USAGE = {"prompt_tokens": 90, "completion_tokens": 2, "total_tokens": 92}
FILTER = {
    "hate": {"filtered": False, "severity": "safe"},
    "self_harm": {"filtered": False, "severity": "low"},
    "jailbreak": {"filtered": False, "detected": True},
    "protected_material_code": {
        "filtered": False, "detected": True, "citation": {"license": "MIT", "URL": "https://x"},
    },
    "custom_blocklists": {"filtered": False, "details": []},
}  # fmt: skip


def body(
    choice: dict[str, Any] | None = None, message: dict[str, Any] | None = None, **head: Any
) -> dict[str, Any]:
    """A chat completion that answers 7, with further keys."""
    return {
        **HEAD,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "7", **(message or {})},
                "logprobs": {"content": [TOKEN], "refusal": None},
                "finish_reason": "stop",
                **(choice or {}),
            }
        ],
        "usage": USAGE,
        **head,
    }


OPENAI = body(
    message={
        "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None,
    },
    service_tier="default", system_fingerprint="fp_44709d6fcb", metadata={"run": "1"},
    moderation={"input": {"type": "error", "code": "x", "message": "y"}, "output": None},
    usage={
        **USAGE, "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0},
    },
)  # fmt: skip
LLAMA_TOKEN = {**TOKEN, "id": 22, "top_logprobs": [{**t, "id": 22} for t in TOKEN["top_logprobs"]]}
PUBLISHED = {
    "openai": OPENAI,
    "azure": body(
        {"content_filter_results": FILTER, "content_filter_offsets": {"check_offset": 44}},
        {"refusal": None, "context": {"citations": [], "intent": "x"}},
        prompt_filter_results=[{"prompt_index": 0, "content_filter_results": FILTER}],
        prompt_annotations=[], system_fingerprint="fp",
    ),
    "vllm": body(
        {"stop_reason": None, "token_ids": [22, 2], "routed_experts": None},
        {
            "refusal": None, "annotations": None, "audio": None, "function_call": None,
            "tool_calls": [], "reasoning": None, "reasoning_content": None,
        },
        service_tier=None, system_fingerprint=None, prompt_logprobs=[None, {"5": {"logprob": -1.0}}],
        prompt_token_ids=[1, 5], kv_transfer_params={"do_remote_decode": False},
    ),
    "sglang": body(
        {"matched_stop": 2, "hidden_states": None, "finish_reason": "stop"},
        {"reasoning_content": None, "tool_calls": None},
        metadata={"weight_version": "default"}, sglext={"routed_experts": None},
    ),
    "llama.cpp": body(
        {"logprobs": {"content": [LLAMA_TOKEN]}},
        system_fingerprint="b9000-abc", timings={"prompt_n": 90, "predicted_ms": 4.0},
        __verbose={"index": 0, "content": "7", "truncated": False, "stop_type": "eos"},
    ),
    "ollama": body(system_fingerprint="fp_ollama", _debug_info={"rendered_template": "x"}),
    "openrouter": body(
        {"native_finish_reason": "STOP"},
        {"refusal": None, "reasoning": None, "reasoning_details": [], "images": []},
        provider="Novita", system_fingerprint="", citations=[],
        usage={**USAGE, "cost": 0.00014, "is_byok": False, "cost_details": {"x": None}},
    ),
    "litellm": body(
        {"provider_specific_fields": {"a": 1}},
        {"tool_calls": None, "function_call": None, "provider_specific_fields": {"citations": None}},
        service_tier=None, system_fingerprint=None,
        usage={**USAGE, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
    ),
    "mistral": body(message={"prefix": False, "tool_calls": None, "content": [
        {"type": "text", "text": "7"}
    ]}),
    "groq": body(
        x_groq={"id": "req_1"}, usage_breakdown=None, system_fingerprint="fp", service_tier="on_demand",
        usage={**USAGE, "queue_time": 0.1, "total_time": 0.2},
    ),
    "tgi": body({"finish_reason": "eos_token"}, object="text_completion"),
    "cut behind the digit": body({"finish_reason": "length"}),
}  # fmt: skip


def answer(reply: Any, **settings: Any) -> JudgeReply | NoReply:
    """What the client makes of a body, which a server sends with HTTP 200."""
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    with serve(lambda asked, number: Scripted(body=data)) as server:
        (found,) = ask(server, requests(1), **settings)
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_answer_in_each_published_schema_is_read_and_has_no_unknown_key(name: str) -> None:
    reply = answer(PUBLISHED[name])
    assert isinstance(reply, JudgeReply)
    assert reply.probabilities == pytest.approx({"7": 0.6, "8": 0.3})
    assert (reply.prompt_tokens, reply.completion_tokens) == (90, 2)
    assert reply.unknown_keys == ()


_CALL = [{"id": "1", "type": "function", "function": {"name": "rate", "arguments": "{}"}}]
_THOUGHT = {"token": "1", "logprob": -0.01, "top_logprobs": [{"token": "1", "logprob": -0.01}]}


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (body(message={"refusal": "I cannot.", "content": None}), "refusal", "I cannot."),
        (body({"logprobs": {"content": None, "refusal": [TOKEN]}}), "refusal", "declines"),
        (body({"finish_reason": "refusal"}), "refusal", "finish_reason = refusal"),
        (body({"finish_reason": "content_filter"}), "content filter", "content_filter"),
        (
            body({"content_filter_results": {**FILTER, "violence": {"filtered": True}}}),
            "content filter", "filtered for violence",
        ),
        (body({"finish_reason": "tool_calls"}), "tool call", "finish_reason"),
        (body(message={"tool_calls": _CALL}), "tool call", "tool_calls"),
        (body(message={"function_call": {"name": "f", "arguments": ""}}), "tool call", "function_call"),
        (body(message={"audio": {"id": "1", "data": "AA"}}), "not text", "audio"),
        (body(message={"images": [{"type": "image_url"}]}), "not text", "images"),
        (body(message={"role": "user"}), "not the judge's", "user"),
        (body(choices=body()["choices"] * 2), "several choices", "2 choices"),
        # the first tokens are those of the reasoning: "1. The answer is ..."
        (body({"logprobs": {"content": [_THOUGHT, TOKEN]}}, {"reasoning": "1. The"}), "reasoning", ""),
        (
            body({"logprobs": {"content": [_THOUGHT]}}, {"thinking_blocks": [{"thinking": "1"}]}),
            "reasoning", "",
        ),
        (body({"logprobs": {"content": [_THOUGHT, TOKEN]}}), "other tokens", "'1', and the text '7'"),
    ],
)  # fmt: skip
def test_what_is_not_an_answer_is_counted_by_its_kind_and_not_asked_again(
    reply: Any, kind: str, words: str
) -> None:
    data = json.dumps(reply).encode()
    with serve(lambda asked, number: Scripted(body=data)) as server:
        (found,) = ask(server, requests(1))
    assert isinstance(found, NoReply)
    assert (found.kind, len(server.requests)) == (kind, 1)
    assert words in found.reason


def test_refusals_cost_tokens_and_do_not_end_the_run() -> None:
    data = json.dumps(body(message={"refusal": "No."})).encode()
    with serve(lambda asked, number: Scripted(body=data)) as server:
        found = ask(server, requests(40))
        assert {reply.kind for reply in found if isinstance(reply, NoReply)} == {"refusal"}
        with pytest.raises(RunError, match="max_tokens = 500"):
            ask(server, requests(40), replace(FAST, max_tokens=500, concurrency=1))
    assert len(server.requests) == 40 + 6


def test_a_sampled_digit_counts_only_in_a_whole_answer() -> None:
    thinking = body(message={"reasoning_content": "1. It is", "content": "7"})
    reply = answer(thinking, digits="sampled")
    assert isinstance(reply, JudgeReply)
    assert reply.probabilities == {"7": 1.0}
    cut = answer(body({"finish_reason": "length"}, {"content": "1"}), digits="sampled")
    assert isinstance(cut, NoReply)
    assert (cut.kind, "'1'" in cut.reason) == ("cut", True)


ERRORS = {
    "openrouter": {"error": {"code": 502, "message": "Provider overloaded", "metadata": {}}},
    "openrouter choice": body(
        {"finish_reason": "error", "error": {"code": 502, "message": "Provider overloaded"}},
        {"content": ""},
    ),
    "tgi": {"error": "Provider overloaded", "error_type": "overloaded"},
    "vllm": {"object": "error", "message": "Provider overloaded", "type": "x", "code": 500},
    "anthropic": {
        "type": "error",
        "error": {"type": "api_error", "message": "Provider overloaded"},
    },
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_with_http_200_is_retried_and_told_in_the_endpoints_words(name: str) -> None:
    data = json.dumps(ERRORS[name]).encode()
    with serve(lambda asked, number: Scripted(body=data)) as server:
        (found,) = ask(server, requests(1))
    assert isinstance(found, NoReply)
    assert len(server.requests) == 3
    assert "HTTP 200 with error" in found.reason
    assert "(Provider overloaded)" in found.reason


@pytest.mark.parametrize(
    ("code", "words"),
    [(401, "refuses the API key"), (402, "demands payment"), (404, "no such path")],
)
def test_an_error_with_http_200_that_concerns_all_requests_ends_the_run(
    code: int, words: str
) -> None:
    with pytest.raises(RunError, match=words):
        answer({"error": {"code": code, "message": "No auth"}})


def test_an_error_with_http_200_about_one_request_is_not_asked_again() -> None:
    found = answer({"error": {"code": 400, "message": "too long"}})
    assert found == NoReply("HTTP 200 with error 400 (too long)")


@pytest.mark.parametrize(
    "reply",
    [
        b'data: {"id": "1", "choices": [{"delta": {"content": "7"}}]}\n\ndata: [DONE]\n\n',
        {**HEAD, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}]},
        {**HEAD, "choices": [{"index": 0, "delta": {"content": "7"}}]},
    ],
)
def test_a_stream_ends_the_run(reply: Any) -> None:
    with pytest.raises(RunError, match="streams its reply"):
        answer(reply)


def test_other_apis_are_named() -> None:
    native = {
        "type": "message",
        "content": [{"type": "text", "text": "7"}],
        "stop_reason": "end_turn",
    }
    found = answer(native)
    assert isinstance(found, NoReply)
    assert "not a chat completion, its keys are type, content, stop_reason" in found.reason


def test_a_token_without_alternatives_is_no_distribution() -> None:
    alone = {"content": [{**TOKEN, "top_logprobs": []}]}
    with pytest.raises(RunError, match=r"no alternatives to a token.*digits=sampled"):
        answer(body({"logprobs": alone}))


def test_two_tokens_of_one_text_count_together() -> None:
    twice = [*TOKEN["top_logprobs"], {"token": "7", "logprob": math.log(0.05), "bytes": [55]}]
    reply = answer(body({"logprobs": {"content": [{**TOKEN, "top_logprobs": twice}]}}))
    assert isinstance(reply, JudgeReply)
    assert reply.probabilities == pytest.approx({"7": 0.65, "8": 0.3})


def test_unknown_keys_are_named() -> None:
    reply = answer(body({"quality": 3, "finish_reason": "mood"}, {"mood": "x"}, trace=[1]))
    assert isinstance(reply, JudgeReply)
    assert reply.unknown_keys == (
        "trace", "choices.quality", "message.mood", "finish_reason = mood",
    )  # fmt: skip


def test_settings_that_ask_for_something_else_than_one_answer_are_refused() -> None:
    for key in ("stream", "n", "tools"):
        with pytest.raises(ConfigError, match="extra_body"):
            EndpointJudge(extra_body=json.dumps({key: 1}))
