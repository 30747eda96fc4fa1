"""The Jinja template that is exported gives the ids and the masks of our own encoder."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stamm.chat.conversation import read_conversation
from stamm.chat.render import encode_conversation
from stamm.tokenizer.special_tokens import PII_MARKERS, RESERVED_TOKENS
from tests.unit.chat.conversations import DESCRIPTION, HOSTILE, TOKENIZER, messages, tools

TEMPLATE = files("stamm.chat").joinpath("template.jinja").read_text(encoding="utf-8")
THEIRS = PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer.from_str(DESCRIPTION),
    bos_token="<s>",
    eos_token="<|assistant_end|>",
    pad_token="<pad>",
)
CONTROL = {i for i, t in enumerate(RESERVED_TOKENS) if t not in PII_MARKERS.values()}


def theirs(rows: list[dict[str, Any]], **options: Any) -> Any:
    return THEIRS.apply_chat_template(
        rows, chat_template=TEMPLATE, tokenize=True, return_dict=True, **options
    )


@settings(max_examples=40, deadline=None)
@given(messages(), tools(), st.booleans(), st.booleans())
def test_transformers_renders_our_ids(
    rows: list[dict[str, Any]], schemas: list[dict[str, Any]], thinking: bool, prompt: bool
) -> None:
    conversation = read_conversation(rows, tools=schemas, deliberation=thinking)
    ours = encode_conversation(conversation, TOKENIZER, prompt=prompt)
    found = theirs(
        rows, tools=schemas or None, enable_thinking=thinking, add_generation_prompt=prompt
    )
    assert list(found["input_ids"]) == ours.ids


@settings(max_examples=40, deadline=None)
@given(messages())
def test_its_generation_markers_are_our_loss_mask(rows: list[dict[str, Any]]) -> None:
    ours = encode_conversation(read_conversation(rows), TOKENIZER)
    found = theirs(rows, return_assistant_tokens_mask=True)
    mask = [bool(each) for each in found["assistant_masks"]]
    # transformers gives a token that two pieces share to the assistant; ours leaves it out
    assert all(mask[i] for i, keep in enumerate(ours.supervised) if keep)
    shared = [i for i, keep in enumerate(ours.supervised) if mask[i] and not keep]
    assert all(ours.ids[i] not in CONTROL for i in shared)
    assert len(shared) <= 2 * sum(row["role"] == "tool" or "blocks" in str(row) for row in rows)


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE))
def test_a_message_never_becomes_a_control_token(rows: list[dict[str, Any]]) -> None:
    """The same control tokens in the same order as without any text."""
    conversation = read_conversation(rows)
    ours = [i for i in encode_conversation(conversation, TOKENIZER).ids if i in CONTROL]
    found = [i for i in theirs(rows)["input_ids"] if i in CONTROL]
    assert found == ours


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"role": "wizard", "content": "x"}], "Unknown role: wizard"),
        ([{"role": "tool", "content": "x"}], "A tool message needs"),
        ([{"role": "user", "content": 3}], "not text"),
        ([{"role": "assistant", "content": {"blocks": [{"type": "q"}]}}], "Unknown block"),
    ],
)
def test_what_it_cannot_write_it_refuses(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(Exception, match=message):
        theirs(rows)
