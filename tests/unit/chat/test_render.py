"""The chat format: golden texts, exact loss masks, and reading it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Response,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
    read_conversation,
    to_messages,
)
from stamm.chat.parse import parse, parse_assistant, segments_of_ids
from stamm.chat.render import Segment, encode_conversation, encode_segments, render, text_of
from stamm.tokenizer.special_tokens import PII_MARKERS, RESERVED_TOKENS
from tests.unit.chat.conversations import HOSTILE, TOKENIZER, messages, tools

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name."},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "where": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
        "required": ["city"],
    },
}
TURN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Bern?"},
    {
        "role": "assistant",
        "content": {
            "blocks": [
                {"type": "thoughts", "text": "I ask."},
                {
                    "type": "tool_calls",
                    "calls": [{"name": "get_weather", "arguments": '{"city": "Bern"}'}],
                },
                {"type": "tool_outputs", "outputs": [{"output": '"sun"'}]},
                {"type": "response", "text": "Sun."},
            ]
        },
    },
]


def test_a_conversation_is_written_block_for_block() -> None:
    segments = render(read_conversation(TURN, tools=[WEATHER], deliberation=True))
    assert text_of(segments) == (
        "<s><|system_start|>Be brief.<|system_end|><|developer_start|>Deliberation: enabled\n"
        "Tool Capabilities:\n// Weather of a city.\ntype get_weather = (_: {\n// Name.\n"
        "city: string,\ndays?: number, // default: 1,\n"
        'unit?: "C" | "F", // default: C,\n'
        "where?: {\nx?: \n                number}\n}) => any;<|developer_end|>"
        "<|user_start|>Weather in Bern?<|user_end|><|assistant_start|><|inner_prefix|>I ask."
        '<|tools_prefix|>[{"get_weather": {"city": "Bern"}}]<|tools_suffix|>["sun"]'
        "<|inner_suffix|>Sun.<|assistant_end|>"
    )
    kept = text_of([segment for segment in segments if segment.supervised])
    assert kept == (
        '<|inner_prefix|>I ask.<|tools_prefix|>[{"get_weather": {"city": "Bern"}}]<|tools_suffix|>'
        "<|inner_suffix|>Sun.<|assistant_end|>"
    )


def test_without_a_system_message_its_block_is_empty() -> None:
    text = text_of(render(read_conversation([{"role": "user", "content": "Hi"}]), prompt=True))
    assert text == (
        "<s><|system_start|><|system_end|><|developer_start|>Deliberation: disabled\n"
        "Tool Capabilities: disabled<|developer_end|><|user_start|>Hi<|user_end|><|assistant_start|>"
    )


def test_the_last_supervised_token_ends_the_turn() -> None:
    encoded = encode_conversation(read_conversation(TURN), TOKENIZER)
    assert (encoded.ids[-1], encoded.supervised[-1]) == (68, True)
    assert encoded.ids[0] == 1


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE), tools(), st.booleans())
def test_a_conversation_is_read_back(
    rows: list[dict[str, Any]], schemas: list[dict[str, Any]], thinking: bool
) -> None:
    conversation = read_conversation(rows, tools=schemas, deliberation=thinking)
    again = to_messages(conversation.system, conversation.turns)
    assert read_conversation(again).turns == conversation.turns
    system, turns = parse(render(conversation))
    assert (system, turns) == (conversation.system or "", conversation.turns)


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE))
def test_ids_are_read_back(rows: list[dict[str, Any]]) -> None:
    conversation = read_conversation(rows)
    ids = encode_conversation(conversation, TOKENIZER).ids
    _, turns = parse(segments_of_ids(ids, TOKENIZER))
    assert turns == conversation.turns


PIECES = [
    *(Segment(name, control=True) for name in RESERVED_TOKENS if name.startswith(("<|inner", "<|tool"))),
    *(
        Segment(text)
        for text in (
            '[{"f": {"x": 1}}]', '[{"a:b": 1}]', '[{"two words": {}}]', '[{"f": 1, "f": 2}]', "[{}]",
            '[{"f": 1}, {"g": "[1]"}]', "[1, 2]", '["sun"] Sun.', "[]", "[", "Hello", "",
        )
    ),
]  # fmt: skip


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_a_model_writes_is_a_conversation(body: list[Segment]) -> None:
    """Every text is kept, and the turn is one that `read_conversation` reads as the same blocks."""
    turns = (UserTurn("Hi"), AssistantTurn(parse_assistant(body)))
    again = read_conversation(to_messages(None, turns), empty_answer=True)
    assert again.turns == turns
    if all(not segment.control for segment in body):
        text = "".join(segment.text for segment in body)
        assert turns[1].blocks == ((Response(text),) if text else ())


@pytest.mark.parametrize(
    ("texts", "blocks"),
    [
        (('[{"f": {}}]', "It rains."), (Response('[{"f": {}}]It rains.'),)),
        (('[{"a:b": 1}]', "[1]"), (Response('[{"a:b": 1}][1]'),)),
        (('[{"f": {}}]', "[1]"), (ToolCalls((ToolCall("f", "{}"),)), ToolOutputs(("1",)))),
        (('[{"f": {}}]',), (ToolCalls((ToolCall("f", "{}"),)),)),
    ],
)
def test_calls_that_cannot_be_read_stay_text(texts: Sequence[str], blocks: Any) -> None:
    calls, *rest = texts
    body = [Segment("<|tools_prefix|>", control=True), Segment(calls)]
    body += [Segment("<|tools_suffix|>", control=True), *map(Segment, rest)]
    assert parse_assistant(body) == blocks


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE))
def test_exactly_the_assistants_bytes_are_supervised(rows: list[dict[str, Any]]) -> None:
    """Decoded, the supervised ids are the supervised text, but for tokens shared with an output."""
    conversation = read_conversation(rows)
    segments = render(conversation)
    encoded = encode_segments(segments, TOKENIZER)
    assert TOKENIZER.decode(encoded.ids) == text_of(segments)
    kept = [i for i, keep in zip(encoded.ids, encoded.supervised, strict=True) if keep]
    wanted = text_of([segment for segment in segments if segment.supervised])
    mixed = any(
        isinstance(turn, AssistantTurn) and any(isinstance(b, ToolOutputs) for b in turn.blocks)
        for turn in conversation.turns
    )
    if mixed:
        assert len(TOKENIZER.decode(kept)) <= len(wanted)
    else:
        assert TOKENIZER.decode(kept) == wanted


def test_tokens_shared_with_a_tool_output_are_not_supervised() -> None:
    class Pairs:
        """A tokenizer whose tokens are two characters."""

        def control_id(self, token: str) -> int:
            return RESERVED_TOKENS.index(token)

        def control_token(self, token_id: int) -> str | None:
            raise NotImplementedError

        def decode(self, ids: Sequence[int]) -> str:
            raise NotImplementedError

        def encode(self, text: str) -> list[int]:
            return self.encode_with_spans(text)[0]

        def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
            spans = [(i, min(i + 2, len(text))) for i in range(0, len(text), 2)]
            return [100 + i for i in range(len(spans))], spans

    segments = [Segment("[1]"), Segment("answer", supervised=True)]
    encoded = encode_segments(segments, Pairs())
    assert encoded.supervised == [False, False, True, True, True]


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE))
def test_control_tokens_come_from_the_format_alone(rows: list[dict[str, Any]]) -> None:
    segments = render(read_conversation(rows))
    control = {i for i, t in enumerate(RESERVED_TOKENS) if t not in PII_MARKERS.values()}
    found = [i for i in encode_segments(segments, TOKENIZER).ids if i in control]
    assert found == [RESERVED_TOKENS.index(s.text) for s in segments if s.control]


def test_public_spellings_are_read_alike() -> None:
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    pairs = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": {"blocks": [{"type": "response", "text": "b"}]}},
    ]
    assert read_conversation(plain) == read_conversation(pairs) == read_conversation(parts)
    assert read_conversation(plain).turns[0] == UserTurn("a")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one message"),
        ("text", "not a list"),
        ([{"role": "wizard", "content": "x"}], "message 1: unknown role 'wizard'"),
        ([{"role": "user", "content": None}], "message 1: the content is not text"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant"}],
            "message 2: .* without content",
        ),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}], "turn is empty"),
        ([{"role": "tool", "content": "x"}], "message 1: a tool message needs"),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            "message 2: the role",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"name": 'a"b'}]}],
            "message 1: a tool call needs a name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}],
            "f are not JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[" * 100_000}]}],
            "f are not JSON",
        ),
        (
            [
                {"role": "assistant", "tool_calls": [{"name": "f"}]},
                {"role": "assistant", "content": "x"},
            ],
            "need their outputs",
        ),
        (
            [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "1"}],
            "need tool calls",
        ),
    ],
)
def test_what_cannot_be_read_is_named(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_conversation(rows)
