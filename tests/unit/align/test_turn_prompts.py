"""Every supervised turn stands after the ids that transformers' generation prompt has at that point."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stamm.chat.conversation import AssistantTurn, Conversation, read_conversation
from stamm.chat.formats import ChatFormat, chat_template
from stamm.chat.render import EncodedChat
from stamm.models.hf_chat_format import load_folder_chat
from tests.unit.chat.conversations import DESCRIPTION, JSON, PLAIN
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder

Messages = list[dict[str, Any]]
TOOL = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
NAMES = [name for name in TEMPLATES if name != "no system"]
TEXT = st.one_of(PLAIN, st.sampled_from(["\n", "\n\n1", "  a", "\tb", " \n c", "a\n\n"]))


@functools.cache
def both(name: str) -> tuple[ChatFormat, PreTrainedTokenizerFast]:
    """Our format of a folder, and the tokenizer of transformers with the folder's template."""
    folder = Path(tempfile.mkdtemp())
    if name == "apertus":
        (folder / "tokenizer.json").write_text(DESCRIPTION, encoding="utf-8")
        (folder / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        imported_folder(folder, TEMPLATES[name])
    return load_folder_chat(folder).chat, PreTrainedTokenizerFast.from_pretrained(folder)


@st.composite
def exchanges(draw: st.DrawFn, thoughts: bool, tools: bool) -> list[Messages]:
    """Messages before each answer, and those of the answer, in turn."""
    head = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    parts: list[Messages] = []
    for _ in range(draw(st.integers(1, 4))):
        asked = draw(st.integers(0 if head else 1, 2))  # transformers needs a message
        parts.append([*head, *({"role": "user", "content": draw(TEXT)} for _ in range(asked))])
        head = []
        answer: Messages = []
        if tools and draw(st.booleans()):
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            answer.append({"role": "assistant", "content": draw(TEXT), "tool_calls": [call]})
            answer.append({"role": "tool", "tool_call_id": "1", "content": draw(JSON)})
        answer.append({"role": "assistant", "content": draw(TEXT) + "."})
        if thoughts and draw(st.booleans()):
            answer[0]["reasoning_content"] = draw(TEXT) + "!"
        if draw(st.integers(0, 3)) == 0:
            for message in answer:
                if message["role"] == "assistant":
                    message["weight"] = 0
        parts.append(answer)
    return parts


def joined(parts: list[Messages]) -> Messages:
    return [message for part in parts for message in part]


def supervised_turns(whole: Conversation) -> list[int]:
    """Places of the answers that are trained on, among the answers."""
    answers = [turn for turn in whole.turns if isinstance(turn, AssistantTurn)]
    return [place for place, turn in enumerate(answers) if turn.supervised]


def sequences(chat: ChatFormat, whole: Conversation) -> list[tuple[list[int], EncodedChat]]:
    """Places of the answers that each training sequence supervises, and its ids."""
    return [(supervised_turns(part), chat.encode(part)) for part in chat.split(whole)]


def check(name: str, parts: list[Messages], deliberation: bool, tools: list[Any]) -> None:
    chat, theirs = both(name)
    whole = read_conversation(joined(parts), tools=tools, deliberation=deliberation)
    found = sequences(chat, whole)
    assert sorted(place for places, _ in found for place in places) == supervised_turns(whole)
    for places, encoded in found:
        starts = []
        for place in places:
            before = joined(parts[: 2 * place + 1])
            asked = read_conversation(before, tools=tools, deliberation=deliberation)
            prompt = list(
                theirs.apply_chat_template(
                    before,
                    tools=tools or None,
                    tokenize=True,
                    return_dict=False,
                    add_generation_prompt=True,
                    enable_thinking=deliberation,
                )
            )
            assert chat.encode(asked, prompt=True).ids == prompt
            assert encoded.ids[: len(prompt)] == prompt
            assert encoded.supervised[len(prompt)]
            starts.append(len(prompt))
        stops = [i for i, id_ in enumerate(encoded.ids) if id_ in chat.stop_ids]
        learned = [i for i in stops if encoded.supervised[i]]
        assert len(learned) == len(places)
        # Nothing is supervised but what follows the prompts, up to the token that ends the turn.
        for i, keep in enumerate(encoded.supervised):
            if keep:
                assert any(a <= i <= b for a, b in zip(starts, learned, strict=True))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(st.data(), st.booleans())
def test_a_turn_is_trained_on_after_the_prompt_that_sampling_has(
    name: str, data: st.DataObject, deliberation: bool
) -> None:
    thoughts = name == "thinking" and deliberation
    check(name, data.draw(exchanges(thoughts, False)), deliberation, [])


@settings(max_examples=30, deadline=None)
@given(exchanges(True, True), st.booleans())
def test_the_apertus_format_with_thoughts_and_tools(
    parts: list[Messages], deliberation: bool
) -> None:
    check("apertus", parts, deliberation, [TOOL])


@settings(max_examples=30, deadline=None)
@given(exchanges(True, True), JSON)
def test_after_tool_outputs_the_turn_continues(parts: list[Messages], result: str) -> None:
    """In the prompt of transformers as in training, whose text after the outputs is the assistant's."""
    chat, theirs = both("apertus")
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = [*joined(parts[:1]), {"role": "assistant", "content": "I ask.", "tool_calls": [call]}]
    asked.append({"role": "tool", "content": result})
    prompt = read_conversation(asked, tools=[TOOL])
    shown = theirs.apply_chat_template(
        asked, tools=[TOOL], tokenize=True, return_dict=False, add_generation_prompt=True
    )
    ids = chat.encode(prompt, prompt=True).ids
    assert ids == list(shown)
    whole = [*asked, {"role": "assistant", "content": "", "reasoning_content": "Now."}]
    encoded = chat.encode(read_conversation(whole, tools=[TOOL]))
    assert encoded.ids[: len(ids)] == ids
    assert encoded.supervised[len(ids)]


@pytest.mark.parametrize(
    ("template", "first", "counts"),
    [
        ("thinking", "a", [1, 1]),
        ("chatml", "a", [2]),
        ("chatml", "\na", [1, 1]),  # the line break would join that of the header
        ("llama3", "\na", [2]),  # trimmed
        ("apertus", "\na", [2]),
    ],
)
def test_a_conversation_is_split_only_where_its_prompts_differ(
    template: str, first: str, counts: list[int]
) -> None:
    rows = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "r"},
        {"role": "assistant", "content": "b"},
    ]
    found = sequences(both(template)[0], read_conversation(rows))
    assert [len(places) for places, _ in found] == counts
