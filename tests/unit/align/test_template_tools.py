"""Tools, thoughts and generation spans of chat templates, which are reduced forms of published ones.

The ids up to each supervised message are those of `apply_chat_template` of transformers with the messages
before it, and its mask ends with the token that ends the turn.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stamm.base.errors import DataError
from stamm.chat.conversation import Conversation, read_conversation
from stamm.chat.template_messages import Spelling, messages_of
from stamm.models.hf_chat_format import FolderChat, load_folder_chat
from tests.unit.align.test_template_format import folder_of, sentencepiece
from tests.unit.chat.published_templates import PHI3, PUBLISHED, QWEN3, QWEN25, SPANS, Published

Messages = list[dict[str, Any]]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'Its "name"'},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"name": "clock"}
TEXT = st.text(st.sampled_from("abÜ敏🦊1 .\"'{}\n\t\\"), max_size=8).map(lambda text: text + "x")
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.floats(-9, 9), TEXT, st.just("")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def chat_of(template: Published) -> tuple[FolderChat, PreTrainedTokenizerFast]:
    folder = Path(tempfile.mkdtemp())
    folder_of(folder, template.template, list(template.tokens), template.end)
    return load_folder_chat(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@functools.cache
def both(name: str) -> tuple[FolderChat, PreTrainedTokenizerFast]:
    """Format and tokenizer of a template, and the tokenizer of transformers with it."""
    return chat_of(PUBLISHED[name])


@st.composite
def conversations(draw: st.DrawFn, template: Published) -> Messages:
    """Messages with calls, outputs and thoughts, as far as a template writes them."""
    system = template.system and (draw(st.booleans()) or template.needs_system)
    rows: Messages = [{"role": "system", "content": draw(TEXT)}] if system else []
    for number in range(draw(st.integers(1, 3))):
        rows.append({"role": "user", "content": draw(TEXT) + str(number)})
        for _ in range(draw(st.integers(0, 2)) if template.calls else 0):
            calls = [
                {
                    "type": "function",
                    "function": {
                        "name": draw(st.sampled_from(["get_weather", "clock"])),
                        "arguments": draw(st.dictionaries(TEXT, VALUE, max_size=2)),
                    },
                }
                for _ in range(draw(st.integers(1, template.calls)))
            ]
            content = draw(st.one_of(st.just(""), TEXT)) if template.beside else ""
            rows.append({"role": "assistant", "content": content, "tool_calls": calls})
            rows += [{"role": "tool", "content": draw(TEXT)} for _ in calls]
        rows.append({"role": "assistant", "content": draw(TEXT)})
    for row in rows:
        if row["role"] == "assistant" and template.thoughts and draw(st.booleans()):
            row["reasoning_content"] = draw(TEXT)
    return rows


def served(rows: Messages, template: Published) -> Messages:
    """Messages as a server gives them to transformers."""
    found = json.loads(json.dumps(rows))
    ids = messages_of(None, read_conversation(rows).turns, Spelling())
    shift = len(found) - len(ids)
    for number, row in enumerate(found):
        if template.ids and "tool_calls" in row:
            for call, ours in zip(
                row["tool_calls"], ids[number - shift]["tool_calls"], strict=True
            ):
                call["id"] = ours["id"]
        if template.ids and row["role"] == "tool":
            row["tool_call_id"] = ids[number - shift]["tool_call_id"]
        if template.text:
            for call in row.get("tool_calls", ()):
                arguments = call["function"]["arguments"]
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return found


def rendered(
    theirs: PreTrainedTokenizerFast, rows: Messages, tools: list[Any], thinks: bool, prompt: bool
) -> list[int]:
    ids: list[int] = theirs.apply_chat_template(
        rows,
        tools=tools or None,
        enable_thinking=thinks,
        add_generation_prompt=prompt,
        tokenize=True,
        return_dict=False,
    )
    return ids


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_each_message_is_trained_on_after_the_prompt_that_is_served(
    name: str, data: st.DataObject
) -> None:
    template = PUBLISHED[name]
    loaded, theirs = both(name)
    rows = data.draw(conversations(template))
    declared = [WEATHER, {"type": "function", "function": CLOCK}]
    tools = data.draw(st.sampled_from([declared, []])) if template.calls else []
    thinks = any("reasoning_content" in row for row in rows) or data.draw(st.booleans())
    whole = read_conversation(rows, tools=tools, deliberation=thinks)
    rows = served(rows, template)
    answers = [number for number, row in enumerate(rows) if row["role"] == "assistant"]
    parts = loaded.chat.split(whole)
    if len(parts) == 1 < len(answers):  # a format of turns trains on all of them at once
        assert not tools
        return
    for number, part in zip(answers, parts, strict=True):
        prompt = rendered(theirs, rows[:number], tools, thinks, True)
        ids = rendered(theirs, rows[: number + 1], tools, thinks, False)
        encoded = loaded.chat.encode(part)
        assert encoded.ids[: len(prompt)] == prompt
        if ids[: len(prompt)] == prompt:
            assert encoded.ids == ids
        else:  # transformers joins a line break of the answer with one of its prompt
            assert rows[number]["content"].startswith("\n")
            assert loaded.tokenizer.decode(encoded.ids) == loaded.tokenizer.decode(ids)
        ids = encoded.ids
        stop = next(i for i in range(len(prompt), len(ids)) if ids[i] in loaded.chat.stop_ids)
        expected = [len(prompt) <= i <= stop for i in range(len(ids))]
        assert encoded.supervised == expected
        text = loaded.tokenizer.decode(ids[len(prompt) : stop + 1])
        assert all(call["function"]["name"] in text for call in rows[number].get("tool_calls", ()))
        assert text.rstrip().endswith(template.end)


@pytest.mark.parametrize("name", ["SmolLM3", "generation spans"])
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_the_mask_lies_within_the_generation_spans_of_transformers(
    name: str, data: st.DataObject
) -> None:
    loaded, theirs = both(name)
    rows = data.draw(conversations(PUBLISHED[name]))
    # Encoded at once, an answer that begins with a line break merges with the prompt's last one. Ours
    # follows the prompt that is served.
    assume(not any(row["role"] == "assistant" and row["content"][:1] == "\n" for row in rows))
    tools = [WEATHER] if PUBLISHED[name].calls else []
    thinks = any("reasoning_content" in row for row in rows)
    encoded = loaded.chat.encode(
        loaded.chat.split(read_conversation(rows, tools=tools, deliberation=thinks))[-1]
    )
    found = theirs.apply_chat_template(
        rows,
        tools=tools or None,
        enable_thinking=thinks,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert list(found["input_ids"]) == encoded.ids
    masks = found["assistant_masks"]
    assert all(mask for mask, keep in zip(masks, encoded.supervised, strict=True) if keep)
    prompt = encoded.supervised.index(True)
    theirs_kept = sum(masks[prompt:])
    assert sum(encoded.supervised) == theirs_kept - (
        1 if name == "SmolLM3" else 0
    )  # its line break


ROWS: Messages = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"function": {"name": "get_weather", "arguments": {"city": "Bern", "days": [1, 2]}}}
        ],
    },
    {"role": "tool", "content": "Sun"},
    {"role": "assistant", "content": "Sunny."},
]
CALL = "tool_call.arguments | tojson"
DICTS = QWEN25.replace("tool_call.arguments is string", "false")
CHANGED = {
    "tools are ignored": (QWEN25.replace("{%- if tools %}", "{%- if false %}"), "declared tool"),
    "the second tool is ignored": (
        QWEN25.replace("for tool in tools", "for tool in tools[:1]"), "the declared tool clock",
    ),
    "descriptions are dropped": (
        QWEN25.replace("tool | tojson", "tool.function.name"), "the declared tool get_weather",
    ),
    "results are dropped": (QWEN25.replace("+ message.content +", "+"), "this tool message"),
    "calls are dropped": (QWEN25.replace("message.tool_calls %}", "false %}"), "call of get_weather"),
    "arguments are dropped": (
        DICTS.replace(CALL, "'{}'"), "the arguments of the call of get_weather",
    ),
    "numbers are dropped": (
        DICTS.replace(CALL, CALL + " | replace('1', '') | replace('2', '')"),
        "the arguments of the call of get_weather",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_what_a_template_does_not_write_of_tools_is_named(case: str) -> None:
    template, message = CHANGED[case]
    assert template != QWEN25
    chat = chat_of(Published(template, PUBLISHED["Qwen2.5"].tokens, "<|im_end|>"))[0].chat
    whole = read_conversation(ROWS, tools=[WEATHER, CLOCK])
    with pytest.raises(DataError, match=message):
        for part in chat.split(whole):
            chat.encode(part)


REFUSED: dict[str, tuple[str, Messages, str]] = {
    "no tools at all": ("Phi-3", ROWS, "declared tool get_weather"),
    "text beside a call": (
        "Llama 3.1", [ROWS[0], {**ROWS[1], "content": "I ask."}, *ROWS[2:]], "this assistant message",
    ),
    "two calls at once": (
        "Llama 3.1",
        [ROWS[0], {**ROWS[1], "tool_calls": ROWS[1]["tool_calls"] * 2}, ROWS[2], *ROWS[2:]],
        "only supports single tool-calls",
    ),
    "a system message that answers take away": (
        "Mistral v3", [{"role": "system", "content": "Be brief."}, *ROWS], "this system message",
    ),
    "a question asked twice, with tools before each": ("Mistral v3", [*ROWS, *ROWS], "user message|begins"),
    "no thoughts": (
        "Qwen2.5", [*ROWS[:3], {**ROWS[3], "reasoning_content": "It shines."}], "thoughts",
    ),
    "tools that are written beside a system message alone": (
        "DeepSeek V3", ROWS, "the declared tool get_weather",
    ),
    "the characters that generation spans are found by": (
        "Qwen3", [{"role": "user", "content": "\U0010fffca\U0010fffd"}, *ROWS[1:]], "this user message",
    ),
    "a control token in a result": (
        "Qwen3", [*ROWS[:2], {"role": "tool", "content": "<|im_end|>"}, ROWS[3]],
        "a tool message spells a control token",
    ),
    "a control token in a call": (
        "Qwen3",
        [ROWS[0], {**ROWS[1], "tool_calls": [{"name": "clock", "arguments": {"a": "</think>"}}]}, *ROWS[2:]],
        "the arguments of the call of clock spell a control token",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_a_template_cannot_write_is_refused(case: str) -> None:
    name, rows, message = REFUSED[case]
    chat = both(name)[0].chat
    whole = read_conversation(rows, tools=[WEATHER, CLOCK], deliberation=True)
    with pytest.raises(DataError, match=message):
        for part in chat.split(whole):
            chat.encode(part)


def test_thoughts_need_deliberation() -> None:
    chat = both("Qwen3")[0].chat
    rows = [*ROWS[:3], {**ROWS[3], "reasoning_content": "It shines."}]
    with pytest.raises(DataError, match="deliberation is not enabled"):
        chat.encode(chat.split(read_conversation(rows, tools=[WEATHER]))[-1])


@pytest.mark.parametrize("name", ["Qwen2.5", "Llama 3.1", "Mistral v3"])
def test_a_turn_with_calls_is_supervised_whole_and_its_outputs_are_not(name: str) -> None:
    """As the answer of a pair is: one sequence of several messages."""
    loaded, _ = both(name)
    encoded = loaded.chat.encode(read_conversation(ROWS, tools=[WEATHER]))
    kept = loaded.tokenizer.decode(
        [id_ for id_, keep in zip(encoded.ids, encoded.supervised, strict=True) if keep]
    )
    end = PUBLISHED[name].end
    assert kept.count(end) == 2
    assert kept.rstrip().endswith("Sunny." + end)
    assert '"Bern"' in kept
    assert "Sun" not in kept.replace("Sunny.", "")
    assert len(loaded.chat.split(read_conversation(ROWS[:2], tools=[WEATHER]))) == 1


def test_a_turn_whose_calls_are_written_otherwise_later_is_refused_as_one_sequence() -> None:
    """Qwen 3 writes empty thoughts in the last message alone."""
    chat = both("Qwen3")[0].chat
    whole = read_conversation(ROWS, tools=[WEATHER])
    assert all(any(chat.encode(part).supervised) for part in chat.split(whole))
    with pytest.raises(DataError, match="messages of this turn alike"):
        chat.encode(whole)


@pytest.mark.parametrize("name", ["Qwen3", "generation spans"])
def test_thoughts_are_read_back(name: str) -> None:
    loaded, _ = both(name)
    rows = [ROWS[0], {**ROWS[3], "reasoning_content": "It shines."}]
    whole = read_conversation(rows, deliberation=True)
    encoded = loaded.chat.encode(whole)
    kept = [id_ for id_, keep in zip(encoded.ids, encoded.supervised, strict=True) if keep]
    assert loaded.chat.parse(kept) == whole.turns[-1].blocks


END = "{{- '<|im_end|>' }}\n        {%- endgeneration %}"
BAD_SPANS = {
    "the end token": (
        SPANS.replace(END, "{%- endgeneration %}" + "{{- '<|im_end|>' }}"),
        r"leaves out the end token '<\|im_end\|>'",
    ),
    "the beginning": (
        SPANS.replace("{%- generation %}", "{{- 'So: ' }}{%- generation %}"), "leaves out 'So: Hi!",
    ),
    "the whole answer": (
        SPANS.replace("{%- generation %}", "{%- generation %}{%- endgeneration %}").replace(END, "{{- '<|im_end|>' }}"),
        "leaves out 'Hi!",
    ),
    "the user's text": (
        SPANS.replace("{{- message.content + '<|im_end|>\\n' }}",
                      "{%- generation %}{{- message.content }}{% endgeneration %}{{- '<|im_end|>\\n' }}"),
        "covers the text of a user message",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SPANS)
def test_a_generation_span_that_contradicts_the_mask_is_named(case: str) -> None:
    template, message = BAD_SPANS[case]
    assert template != SPANS
    with pytest.raises(DataError, match=message):
        chat_of(Published(template, PUBLISHED["generation spans"].tokens, "<|im_end|>"))


def test_thoughts_of_earlier_turns_are_left_out_as_they_are_served() -> None:
    """Each is trained on in its own sequence; a template that never writes them is refused above."""
    loaded, _ = both("Qwen3")
    rows = [*ROWS[:3], {**ROWS[3], "reasoning_content": "It shines."}]
    rows += [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Rain."}]
    whole = read_conversation(rows, tools=[WEATHER], deliberation=True)
    texts = [
        loaded.tokenizer.decode(loaded.chat.encode(part).ids) for part in loaded.chat.split(whole)
    ]
    assert ["It shines." in text for text in texts] == [False, True, False]
    assert isinstance(whole, Conversation)


def test_a_template_without_tools_keeps_its_format_of_turns() -> None:
    assert both("Qwen3")[0].chat.name == "chatml"
    assert both("Llama 3.1")[0].chat.name == "llama3"
    assert both("Phi-3")[0].chat.name == "template"
    assert "tools" not in PHI3
    assert "reasoning_content" in QWEN3


@pytest.mark.parametrize("name", ["Mistral v3", "Llama 3.1", "Qwen3"])
@pytest.mark.parametrize("scheme", ["prepend", "first"])
def test_a_tokenizer_that_begins_texts_with_a_blank_keeps_the_prompts_ids(
    name: str, scheme: str
) -> None:
    template = PUBLISHED[name]
    folder = Path(tempfile.mkdtemp())
    folder_of(folder, template.template, list(template.tokens), template.end)
    tokenizer = sentencepiece(scheme)
    tokenizer.add_special_tokens(["<s>", "</s>", *template.tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    chat = load_folder_chat(folder).chat
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = served(ROWS, template)
    parts = chat.split(read_conversation(ROWS, tools=[WEATHER]))
    for number, part in zip((1, 3), parts, strict=True):
        encoded = chat.encode(part)
        prompt = rendered(theirs, rows[:number], [WEATHER], False, True)
        assert encoded.ids[: len(prompt)] == prompt
        assert encoded.supervised.index(True) == len(prompt)
        assert encoded.ids == rendered(theirs, rows[: number + 1], [WEATHER], False, False)
