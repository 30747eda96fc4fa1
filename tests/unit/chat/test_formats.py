"""Chat formats: the Apertus format behind the protocol that all formats share."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings

from stamm.chat.conversation import AssistantTurn, read_conversation
from stamm.chat.formats import ApertusFormat, ChatFormat
from stamm.chat.render import encode_conversation
from tests.unit.chat.conversations import HOSTILE, TOKENIZER, messages

FORMAT: ChatFormat = ApertusFormat(TOKENIZER, TOKENIZER.sha256)


@settings(max_examples=40, deadline=None)
@given(messages(HOSTILE))
def test_a_prompt_is_the_beginning_of_its_conversation(rows: list[dict[str, Any]]) -> None:
    whole = read_conversation(rows)
    assert isinstance(whole.turns[-1], AssistantTurn)
    prompt = FORMAT.encode(dataclasses.replace(whole, turns=whole.turns[:-1]), prompt=True)
    encoded = FORMAT.encode(whole)
    assert encoded == encode_conversation(whole, TOKENIZER)
    assert encoded.ids[: len(prompt.ids)] == prompt.ids
    answer = encoded.ids[len(prompt.ids) :]
    assert answer[-1] in FORMAT.stop_ids
    assert FORMAT.parse(answer) == whole.turns[-1].blocks
    assert FORMAT.parse([*answer, 70, 5]) == whole.turns[-1].blocks


def test_decoding_leaves_control_tokens_out() -> None:
    ids = [*TOKENIZER.encode("Grüezi "), 69, *TOKENIZER.encode("Welt"), 70, 68]
    assert FORMAT.decode(ids) == "Grüezi Welt"


def test_the_hash_names_the_tokenizer_and_the_ids_are_those_of_apertus() -> None:
    assert FORMAT.sha256 != ApertusFormat(TOKENIZER, "other").sha256
    assert (FORMAT.name, FORMAT.pad_id, FORMAT.stop_ids) == ("apertus", 3, {2, 68})
