"""Messages of public data: thoughts, weights, tool calls and their outputs, and keys that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Block,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    as_prompt,
    before_last_turn,
    one_turn_each,
    read_conversation,
    to_messages,
)

USER = {"role": "user", "content": "q"}
REASONED = (Thoughts("Why."), Response("So."))


def blocks_of(*messages: dict[str, Any]) -> tuple[Block, ...]:
    """The blocks of the answer that these messages are."""
    (turn,) = read_conversation([USER, *messages]).turns[1:]
    assert isinstance(turn, AssistantTurn)
    return turn.blocks


def answer(content: Any = "a", **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


@pytest.mark.parametrize(
    "message",
    [
        answer("So.", reasoning_content="Why."),
        answer("So.", reasoning="Why."),
        answer("So.", thinking="Why."),
        answer("So.", reasoning="Why.", reasoning_content="Why."),
        answer("So.", reasoning="", thinking="Why."),
        answer("<thinking>\nWhy.\n</thinking>\nSo."),
        answer("<THINK>Why.</think >So."),
        answer("<reasoning>Why.</reasoning>So."),
        answer({"parts": [{"text": "Why.", "thought": True}, {"text": "So."}]}),
        answer("<think>\nWhy.\n</think>\n\nSo."),
        answer("<think>Why.</think>So.", reasoning_content=""),
        answer("\n<think>\nWhy.\n</think>\n\nSo.", reasoning_content="Why."),
        answer([{"type": "thinking", "thinking": "Why."}, {"type": "text", "text": "So."}]),
        answer([{"type": "thinking", "thinking": [{"type": "text", "text": "Why."}]}, {"text": "So."}]),
        answer([{"type": "text", "text": "<think>\nWhy.\n</think>\nSo."}]),
        answer({"blocks": [{"type": "thoughts", "text": "Why."}, {"type": "response", "text": "So."}]}),
    ],
)  # fmt: skip
def test_thoughts_in_every_spelling(message: dict[str, Any]) -> None:
    assert blocks_of(message) == REASONED


def test_a_content_that_is_one_part_has_its_type() -> None:
    assert blocks_of(answer({"type": "thinking", "text": "T"})) == (Thoughts("T"),)
    assert blocks_of(answer({"type": "text", "text": "T"})) == (Response("T"),)


def test_empty_thoughts_are_none_and_tags_elsewhere_are_text() -> None:
    assert blocks_of(answer("<think>\n\n</think>\n\nSo.")) == (Response("So."),)
    told = {"role": "user", "content": "Write <think> first."}
    assert read_conversation([told, answer()]).turns[0].text == "Write <think> first."  # type: ignore[union-attr]
    letters = (Response("</think> ends it"),)
    again = to_messages(None, (AssistantTurn(letters),))
    assert blocks_of(*again) == letters


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (answer("Use <think> here."), "the content has <think> or </think>"),
        (answer("Why.\n</think>\nSo."), "the content has <think>"),
        (answer("<think>a</think>b<think>c</think>d"), "the content has <think>"),
        (answer("<think>a</think>b", reasoning="c"), "thoughts in a key and others in the content"),
        (answer("a", reasoning="b", thinking="c"), "reasoning and thinking are different"),
        (answer("So <thinking>Why.</thinking>"), "the content has <thinking>"),
        (answer("<think>a</reasoning>b"), "the content has <think>"),
        (answer("<|begin_of_thought|>a<|end_of_thought|>b"), r"the content has <\|begin_of_thought"),
        (answer("<|channel|>analysis<|message|>a"), r"the content has <\|channel"),
        (answer('<tool_call>{"name": "f"}</tool_call>'), "the content has <tool_call>"),
        (answer("<think>a</think><tool_call>b</tool_call>"), "the content has <tool_call>"),
        (answer({"text": "a", "thinking": "T"}), "thinking = 'T' is unknown in parts"),
        ({**USER, "content": {"text": "q", "image": "x.png"}}, "image = 'x.png' is not text"),
        ({**USER, "content": [{"text": "q", "thought": True}]}, "only text is supported"),
        (answer({"parts": [{"text": "a"}], "text": "B"}), "text = 'B' is unknown in a content in parts"),
        (answer({"blocks": [{"type": "response", "text": "a"}], "text": "B"}), "text = 'B' is unknown"),
        (answer({"blocks": [{"type": "response", "text": "a", "calls": [1]}]}), r"calls = \[1\] is unknown"),
        (answer([{"text": "draft", "weight": 0}]), "weight = 0 is unknown in parts"),
        (answer("a", reasoning={"text": "b"}), "the thoughts are not text"),
        (answer("a", reasoning_details=[{"text": "b"}]), "reasoning_details = .* holds thoughts"),
        (answer("a", value="b"), "content and value are different"),
        (answer("a", weight=0.5), "weight = 0.5: a message is trained on whole"),
        (answer("a", weight="0"), "weight = '0'"),
        (answer("a", weight=1, train=False), "weight and train disagree"),
        (answer("a", train_detail=[{"begin_offset": 0}]), "trains on parts of a message"),
        (answer("a", refusal="I cannot."), "is an answer beside the content"),
        (answer("a", audio={"id": "x"}), "audio = .* is not text"),
        (answer("a", prefix=True), "prefix = True"),
        (answer("a", finish_reason="length"), "did not end by itself"),
        (answer("a", loss_mask=[0, 1]), r"loss_mask = \[0, 1\] trains on parts"),
        (answer("a", mask=1), "mask = 1 trains on parts"),
        (answer("a", thoughts="b"), "thoughts = 'b' holds thoughts"),
        (answer("a", reasoning_text="b"), "reasoning_text = 'b' holds thoughts"),
        (answer("a", parts=[{"text": "b"}]), "is a content too"),
        (answer("a", channel="analysis"), "names a channel"),
        (answer("a", name="Ann"), "name = 'Ann', and no chat format writes names"),
        (answer("a", function_calls="f()"), "Put them into tool_calls"),
        (answer([{"type": "image", "text": "x"}]), "a part of the type 'image'"),
        (answer([{"type": "text", "text": "x", "image_url": "y"}]), "image_url = 'y' is not text"),
        (answer([{"type": "tool_use", "name": "f"}]), "a part of the type 'tool_use'"),
        (answer("a", tool_call_id="1"), "not of the role tool"),
        ({**USER, "weight": 1}, "asks to train on a message of the user"),
        ({**USER, "reasoning": "x"}, "reasoning in a message of the user"),
        ({**USER, "tool_calls": [{"name": "f"}]}, "tool_calls in a message of the user"),
        ({"from": "function_call", "value": "f()"}, "the call is not JSON"),
    ],
)  # fmt: skip
def test_a_key_that_changes_the_meaning_is_honoured_or_named(
    message: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=what):
        read_conversation([USER, message])


@pytest.mark.parametrize(
    "keys",
    [
        {"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}, {"loss": False},
        {"loss_weight": 0.0}, {"loss_scale": 0}, {"masked": True}, {"weight": 0, "train": False},
    ],
)  # fmt: skip
def test_a_message_without_weight_is_context(keys: dict[str, Any]) -> None:
    found = read_conversation([USER, answer("draft", **keys), USER, answer("good", weight=1)])
    plain = read_conversation([USER, answer("draft"), USER, answer("good")])
    assert [turn.supervised for turn in found.turns if isinstance(turn, AssistantTurn)] == [
        False,
        True,
    ]
    assert found != plain
    assert read_conversation(to_messages(None, found.turns)) == found
    # As a prompt both are the same: nothing of it is trained on.
    assert before_last_turn(found) == before_last_turn(plain)
    assert as_prompt(found.turns) == plain.turns
    assert [len(part.turns) for part in one_turn_each(found)] == [4]
    parts = one_turn_each(plain)
    assert [len(part.turns) for part in parts] == [2, 4]
    assert parts[1] == found


def test_one_turn_is_trained_on_as_a_whole() -> None:
    with pytest.raises(DataError, match="one turn has messages that are trained on and others"):
        read_conversation([USER, answer("a", weight=0), answer("b")])
    with pytest.raises(DataError, match="a second answer of the assistant follows the first"):
        read_conversation([USER, answer("Hello."), answer("How are you?")])
    with pytest.raises(DataError, match="only messages of the assistant"):
        read_conversation([USER, answer("a"), {"role": "user", "content": "b", "train": True}])


def calls(*pairs: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in pairs
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def output(text: str, **keys: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **keys}


def test_outputs_are_given_to_the_calls_that_they_name() -> None:
    two = calls(("x", "f"), ("y", "g"))
    ordered = (ToolCalls((ToolCall("f", "{}"), ToolCall("g", "{}"))), ToolOutputs(("1", "2")))
    for outputs in (
        [output("1", tool_call_id="x"), output("2", tool_call_id="y")],
        [output("2", tool_call_id="y"), output("1", tool_call_id="x")],
        [output("2", name="g"), output("1", name="f")],
        [output("1"), output("2")],
        [output("2", id="y"), output("1", id="x")],
        [output("2", call_id="y", name="g"), output("1", call_id="x")],
        [output("2", tool_name="g"), output("1", tool_name="f")],
        [output("1", id="message 7"), output("2", id="message 8")],
    ):
        assert blocks_of(two, *outputs) == ordered


def test_outputs_of_blocks_are_given_to_the_calls_that_they_name() -> None:
    made = {"type": "tool_calls", "calls": [{"name": "f", "id": "1"}, {"name": "f", "id": "2"}]}
    one, two = {"output": "one", "id": "1"}, {"output": "two", "id": "2"}
    ordered = ToolOutputs(("one", "two"))
    for messages in (
        [answer({"blocks": [made, {"type": "tool_outputs", "outputs": [two, one]}]})],
        [answer({"blocks": [made]}), output("two", tool_call_id="2"), output("one", tool_call_id="1")],
        [answer({"blocks": [made]}), answer({"blocks": [{"type": "tool_outputs", "outputs": [two, one]}]})],
    ):  # fmt: skip
        assert blocks_of(*messages)[1] == ordered
    for outputs in (
        [one],
        [one, two, one],
        [one, {**two, "id": "3"}],
        [one, {**two, "error": "x"}],
    ):
        with pytest.raises(DataError, match="message 2"):
            blocks_of(answer({"blocks": [made, {"type": "tool_outputs", "outputs": outputs}]}))


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        ([output("1", tool_call_id="x")], "1 tool messages after 2 tool calls"),
        ([output("1", tool_call_id="x"), output("2", tool_call_id="z")], "does not match the calls'"),
        ([output("1", tool_call_id="x"), output("2")], "does not match the calls'"),
        ([output("1", name="f"), output("2", name="h")], "does not match the calls'"),
        ([output("1", id="x"), output("2")], "does not match the calls'"),
        (
            [output("1", tool_call_id="x", name="g"), output("2", tool_call_id="y", name="f")],
            "and the calls' .* are different",
        ),
        (
            [output("1", tool_call_id="x", call_id="y"), output("2", tool_call_id="y")],
            "tool_call_id and call_id are different",
        ),
    ],
)  # fmt: skip
def test_outputs_of_other_calls_are_named(outputs: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(DataError, match=what):
        read_conversation([USER, calls(("x", "f"), ("y", "g")), *outputs])
    with pytest.raises(DataError, match="the calls have no identifiers"):
        pair = [output("2", tool_call_id="y"), output("1", tool_call_id="x")]
        read_conversation([USER, calls(("", "f"), ("", "f")), *pair])


def test_older_and_other_spellings_of_calls() -> None:
    expected = (ToolCalls((ToolCall("f", '{"x": 1}'),)), ToolOutputs(("2",)), Response("Two."))
    function = {"name": "f", "arguments": '{"x": 1}'}
    openai = [
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "f", "content": "2"},
        answer("Two."),
    ]
    sharegpt = [
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "Two."},
    ]
    llama = [
        {"role": "assistant", "tool_calls": [{"name": "f", "parameters": {"x": 1}}]},
        {"role": "ipython", "content": "2"},
        answer("Two."),
    ]
    for messages in (openai, sharegpt, llama):
        assert blocks_of(*messages) == expected


@pytest.mark.parametrize(
    "call",
    [
        {"name": "f", "args": {"x": 1}, "id": "1", "type": "tool_call"},
        {"name": "f", "kwargs": {"x": 1}},
        {"name": "f", "action_input": {"x": 1}},
        {"function": {"name": "f"}, "arguments": {"x": 1}},
        {"function": {"name": "f", "arguments": {}}, "arguments": '{"x": 1}', "type": "function"},
    ],
)
def test_arguments_of_calls_in_every_spelling(call: dict[str, Any]) -> None:
    expected = (ToolCalls((ToolCall("f", '{"x": 1}'),)),)
    assert blocks_of({"role": "assistant", "tool_calls": [call]}) == expected
    assert blocks_of(answer({"blocks": [{"type": "tool_calls", "calls": [call]}]})) == expected
    for key in ("tool_input", "result", "params"):
        with pytest.raises(
            DataError, match=rf"{key} = .* is unknown in tool calls, and .* \(message 2, the call f"
        ):
            blocks_of({"role": "assistant", "tool_calls": [{**call, key: {"y": 2}}]})
    with pytest.raises(DataError, match="are different"):
        blocks_of({"role": "assistant", "tool_calls": [{**call, "input": {"y": 2}}]})


def test_the_thoughts_of_a_call_message_are_kept() -> None:
    written = '{"name": "f", "arguments": {}}'
    for key in ("reasoning", "reasoning_content", "thinking"):
        message = {"role": "function_call", "content": written, key: "T"}
        assert blocks_of(message) == (Thoughts("T"), ToolCalls((ToolCall("f", "{}"),)))


def test_tools_may_lack_a_description_and_not_their_schema() -> None:
    (tool,) = read_conversation([USER], tools=[{"name": "f", "description": None}]).tools
    assert tool == {"name": "f"}
    flat = {"name": "f", "parameters": {"city": {"type": "string"}}}
    with pytest.raises(DataError, match="it has no type and no properties"):
        read_conversation([USER], tools=[flat])
    with pytest.raises(DataError, match=r"input_schema = .* describes a tool's arguments"):
        read_conversation([USER], tools=[{"name": "f", "input_schema": {"type": "object"}}])
    with pytest.raises(DataError, match="the description is not text"):
        read_conversation([USER], tools=[{"name": "f", "description": 3}])
