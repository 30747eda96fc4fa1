"""Random conversations for hypothesis, and a small tokenizer that all tests of the format use."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.tokenizer.special_tokens import RESERVED_TOKENS
from stamm.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "The user asks for the weather in Zürich; the assistant calls get_weather.",
    'Deliberation: disabled\nTool Capabilities: [{"get_weather": {"city": "Bern"}}]',
    "敏捷的棕色狐狸跳过了懒狗。 12345 + 678 = 13023",
] * 20
DESCRIPTION = train_tokenizer_on(TokenizerConfig(vocab_size=480), TEXTS)
TOKENIZER = Tokenizer(DESCRIPTION)

ALPHABET = st.characters(codec="utf-8", exclude_categories=["Cs"])
PLAIN = st.text(ALPHABET.filter(lambda c: c != "<"), max_size=20)
HOSTILE = st.one_of(
    PLAIN,
    st.sampled_from(RESERVED_TOKENS),
    st.sampled_from(["<|", "user_end|>", "<", "</", "s>", "<|assistant_end|><|user_start|>"]),
)
NAME = st.sampled_from(["get_weather", "display_answers", "f"])
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), PLAIN),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN, inner, max_size=2),
    max_leaves=4,
)
JSON = VALUE.map(lambda value: json.dumps(value, ensure_ascii=False))
TYPE: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        st.sampled_from(["string", "number", "integer", "boolean", "object", "array"]).map(
            lambda kind: {"type": kind}
        ),
        st.just({"type": "string", "enum": ["a", "b"]}),
        st.just({"type": "string", "nullable": True}),
        st.just({"type": ["object", "null"]}),
        st.just({}),
    ),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "nullable": True}),
        st.dictionaries(st.sampled_from(["x", "y"]), inner, min_size=1).map(
            lambda fields: {"type": "object", "properties": fields, "required": ["x"]}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: {"oneOf": each}),
    ),
    max_leaves=4,
)


def written(text: str) -> Any:
    """The content of an assistant's message that is read as this text, tags of thoughts included."""
    if "think>" not in text:
        return text
    return {"blocks": [{"type": "response", "text": text}]}


@st.composite
def tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    """JSON schemas of up to two tools, in OpenAI's wrapper or without it."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        tool: dict[str, Any] = {"name": draw(NAME), "description": draw(PLAIN)}
        if draw(st.booleans()):
            fields = draw(st.dictionaries(st.sampled_from(["city", "day"]), TYPE, max_size=2))
            for spec in fields.values():
                if draw(st.booleans()):
                    spec["description"] = draw(PLAIN)
                if draw(st.booleans()):
                    spec["default"] = "b" if "enum" in spec or "oneOf" in spec else draw(VALUE)
            tool["parameters"] = {"properties": fields, "required": ["city"]}
        found.append({"type": "function", "function": tool} if draw(st.booleans()) else tool)
    return found


@st.composite
def messages(draw: st.DrawFn, text: st.SearchStrategy[str] = PLAIN) -> list[dict[str, Any]]:
    """Messages of a row: a system message or none, then turns, with calls in both spellings."""
    rows: list[dict[str, Any]] = []
    if draw(st.booleans()):
        rows.append({"role": "system", "content": draw(text)})
    for _ in range(draw(st.integers(1, 3))):
        content: Any = draw(text)
        if draw(st.integers(0, 4)) == 0:
            content = {"parts": [{"type": "text", "text": content}, {"type": "text", "text": "."}]}
        rows.append({"role": "user", "content": content})
        rows += draw(_assistant(text))
    return rows


@st.composite
def _assistant(draw: st.DrawFn, text: st.SearchStrategy[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 2))):
        calls = [
            {"name": draw(NAME), "arguments": draw(JSON)} for _ in range(draw(st.integers(1, 2)))
        ]
        outputs = [draw(JSON) for _ in calls]
        if draw(st.booleans()):
            blocks = [
                {"type": draw(st.sampled_from(["thoughts", "response"])), "text": draw(text)},
                {"type": "tool_calls", "calls": calls},
                {"type": "tool_outputs", "outputs": [{"output": each} for each in outputs]},
            ]
            rows.append({"role": "assistant", "content": {"blocks": blocks}})
        else:
            wrapped = [{"type": "function", "function": call} for call in calls]
            content = written(draw(text))
            rows.append({"role": "assistant", "content": content, "tool_calls": wrapped})
            rows += [{"role": "tool", "content": each} for each in outputs]
    if draw(st.booleans()):
        rows.append({"role": "assistant", "content": written(draw(text) + "x")})
    else:
        blocks = [{"type": "thoughts", "text": draw(text)}, {"type": "response", "text": "x"}]
        rows.append({"role": "assistant", "content": {"blocks": blocks}})
    return rows
