"""Encoding of rows: whatever a row holds, it is encoded or named as bad."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stamm.align.data.encoded import (
    EMPTY_ANSWER,
    NO_LOSS_TOKENS,
    RowDropError,
    encode_row,
    texts_of,
)
from stamm.align.data.examples import RowOrigin, read_example
from stamm.base.errors import DataError
from stamm.chat.conversation import Conversation
from stamm.chat.formats import ApertusFormat
from stamm.chat.render import EncodedChat
from tests.unit.align.prepared import chat
from tests.unit.chat.conversations import TOKENIZER

FORMAT = ApertusFormat(TOKENIZER, "hash")
ORIGIN = RowOrigin(file="rows.jsonl", row=1)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "messages",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "tools",
        "reward",
        "ref_rewards",
        "blocks",
        "parts",
        "text",
        "type",
        "calls",
        "name",
        "arguments",
        "outputs",
        "function",
        "description",
        "parameters",
        "properties",
        "items",
        "oneOf",
        "enum",
        "required",
        "default",
        "tool_calls",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["user", "assistant", "tool", "tool_calls", "response", "object", "array", "f", "", "\ud800"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
TOOLS = st.fixed_dictionaries(
    {"name": st.just("f"), "description": st.just("d"), "parameters": VALUES}
)
ASSISTANT = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": VALUES}, optional={"tool_calls": VALUES}
)
ROWS = st.one_of(
    VALUES,
    st.fixed_dictionaries({"messages": st.lists(ASSISTANT, max_size=2), "tools": st.lists(TOOLS)}),
    st.fixed_dictionaries(
        {"messages": st.just(chat("q", "a")["messages"]), "tools": st.lists(TOOLS)}
    ),
    st.fixed_dictionaries({"prompt": VALUES, "completion": VALUES, "reward": VALUES}),
    st.fixed_dictionaries({"chosen": st.lists(ASSISTANT), "rejected": st.lists(ASSISTANT)}),
)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_any_row_is_encoded_or_named(row: Any) -> None:
    try:
        example = read_example(row, ORIGIN)
        answers = encode_row(example, FORMAT, 4096, 0, "")
    except DataError:
        return
    assert "".join(texts_of(example))
    for answer in answers:
        assert len(answer.ids) == len(answer.supervised)
        assert any(answer.supervised)
        assert not any(answer.supervised[: answer.prompt_tokens]) or answer.role == "chat"


class Unmasked(ApertusFormat):
    """A format that supervises nothing."""

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        found = super().encode(conversation, prompt=prompt)
        return EncodedChat(found.ids, [False] * len(found.ids))


class Rewritten(ApertusFormat):
    """A format whose prompts do not begin as conversations do."""

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        found = super().encode(conversation, prompt=prompt)
        return EncodedChat(found.ids[1:], found.supervised[1:]) if prompt else found


@pytest.mark.parametrize(
    ("kind", "reason", "detail"),
    [
        (Unmasked, NO_LOSS_TOKENS, "no token of the chat"),
        (Rewritten, "bad_row", "writes the prompt differently"),
    ],
)
def test_a_format_without_mask_or_prefix_is_noticed(
    kind: type[ApertusFormat], reason: str, detail: str
) -> None:
    row = read_example(chat("2+2?", "4"), ORIGIN)
    with pytest.raises(RowDropError, match=detail) as dropped:
        encode_row(row, kind(TOKENIZER, "hash"), 4096, 0, "")
    assert dropped.value.reason == reason


def test_a_blank_turn_before_the_last_counts_in_a_chat_and_not_in_a_pair() -> None:
    before = chat("hi", " ")["messages"]
    with pytest.raises(RowDropError) as dropped:
        encode_row(read_example({"messages": before * 2}, ORIGIN), FORMAT, 4096, 0, "")
    assert dropped.value.reason == EMPTY_ANSWER
    pair = {"prompt": [*before, before[0]], "chosen": "yes", "rejected": "no"}
    assert len(encode_row(read_example(pair, ORIGIN), FORMAT, 4096, 0, "")) == 2
