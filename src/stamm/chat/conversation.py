"""Conversations: messages of a data set as typed turns, checked once when they are read.

A conversation is a system message (optional), the developer settings (deliberation, tools) and
turns of the user and the assistant. An assistant's turn is a sequence of blocks: thoughts, tool
calls, tool outputs, responses. Rows are read in the forms that public data sets have: OpenAI's
(`tool_calls`, messages of the role "tool", the older `function_call`), ShareGPT's ("from", "value",
the roles function_call and observation), thoughts as `reasoning_content`, `reasoning`, `thinking`, parts of
the type "thinking" or text between <think> and </think>, and Apertus' (`content` as {"blocks": [...]}
or {"parts": [...]}); they all become the same blocks. Keys of a message that change its meaning and
are not read are refused (`MESSAGE_KEYS`).

Source   swiss-ai/apertus_format, docs/format.md; OpenAI, fine-tuning API (`weight`); axolotl, dataset
         formats (`train`, `train_detail`); LLaMA-Factory, data/README.md; the templates of Qwen 3
Checked  tests/unit/chat/test_conversation.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stamm.base.errors import DataError
from stamm.base.json_text import once_each, parse_json
from stamm.chat.message_keys import (
    ARGUMENTS,
    BLOCK_KEYS,
    BLOCKS_KEYS,
    CALL_KEYS,
    IDS,
    LOSS_KEYS,
    MESSAGE_KEYS,
    NAMES,
    NO_TEXT,
    OUTPUT_KEYS,
    PART_KEYS,
    PARTS_KEYS,
    THOUGHT_KEYS,
    THOUGHTS,
    TOOL_KEYS,
)
from stamm.chat.tool_types import check_schema

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of tools: they are written between quotes without escapes."""


THINK, THINK_END = "<think>", "</think>"
_TAG = r"</?\s*(?:think|thinking|reasoning)\s*>"
_TAGGED = re.compile(
    rf"\s*<\s*(think|thinking|reasoning)\s*>((?:(?!{_TAG}).)*)</\s*\1\s*>((?:(?!{_TAG}).)*)",
    re.DOTALL | re.IGNORECASE,
)
_MARKUP = re.compile(
    rf"{_TAG}|</?(?:seed:think|thought)>|◁/?think▷|\[/?THINK\]|\[TOOL_CALLS\]|<function=[\w.-]+>"
    r"|</?(?:minimax:)?tool_(?:call|response)>|</?function_?calls?>"
    r"|<\|(?:channel|python_tag|(?:begin|end)_of_(?:thought|solution)|tool_calls?_?(?:begin|section_begin)?)\|>",
    re.IGNORECASE,
)
"""Thoughts and tool calls of models' own formats, in the text of an answer."""
_CONTROL = re.compile(
    r"<\|/?[A-Za-z][\w.:-]{2,60}\|>|<｜[^｜<>\n]{2,60}｜>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>"
)
_ENDED = re.compile(r"(</s>|<eos>)\s*\Z")
_TEMPLATED = re.compile(
    r"\s*(?:<s>|<bos>|<\|begin_of_text\|>|<\|startoftext\|>|<｜begin▁of▁sentence｜>)?\s*(<\|im_start\|>|"
    r"<\|start_header_id\|>|<\|start\|>|<start_of_turn>|\[INST\]|<\|(?:user|system)\|>|<｜User｜>)"
)
"""The beginning of a text that is a conversation in a chat format."""
_CALL = "call"
_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
    **dict.fromkeys(("tool", "ipython", "function", "observation", "tool_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), _CALL),
}


class EmptyAnswerError(DataError):
    """A turn of the assistant without content."""


@dataclass(frozen=True)
class Thoughts:
    """Deliberation of the assistant that the user is not shown."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call of one tool; `arguments` is JSON text, kept as it was written."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCalls:
    """Calls that the assistant makes at once."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class ToolOutputs:
    """Outputs of the tools, one text per call. They come from the environment and are never supervised."""

    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Response:
    """Text of the assistant that the user is shown."""

    text: str


Block = Thoughts | ToolCalls | ToolOutputs | Response


@dataclass(frozen=True)
class UserTurn:
    """Message of the user."""

    text: str


@dataclass(frozen=True)
class AssistantTurn:
    """Blocks of the assistant between two turns of the user, tool outputs included.

    supervised   whether the turn is trained on where its conversation is; False: it is context
    """

    blocks: tuple[Block, ...]
    supervised: bool = True

    @property
    def text(self) -> str:
        """The text that the user is shown: without thoughts, tool calls and tool outputs."""
        return "".join(block.text for block in self.blocks if isinstance(block, Response))


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation in the form that `stamm.chat.render` writes.

    system         the system message; None: none was given
    deliberation   whether the developer block allows thoughts
    tools          JSON schemas of the tools: name, description, parameters
    turns          of user and assistant, in order
    """

    turns: tuple[UserTurn | AssistantTurn, ...]
    system: str | None = None
    deliberation: bool = False
    tools: tuple[Mapping[str, Any], ...] = field(default=())


def read_conversation(
    messages: object,
    *,
    tools: object = None,
    deliberation: bool = False,
    empty_answer: bool = False,
) -> Conversation:
    """The conversation of a row's messages.

    messages       a list of {"role", "content", ...}; "from"/"value" pairs are read as well
    tools          a list of JSON schemas, with or without OpenAI's {"type": "function"} around them
    deliberation   see Conversation
    empty_answer   whether the last turn may be the assistant's without content: a model that ended
                   its turn at once

    Edge     outputs of tools are given to the calls before them by tool_call_id (call_id, id), else by
             name (tool_name), else in order
    Raises   DataError naming the message, from 1, that cannot be read.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError("messages is not a list with at least one message")
    system: str | None = None
    turns: list[UserTurn | AssistantTurn] = []
    called: list[_Called] = []
    outputs: list[tuple[int, Mapping[str, Any]]] = []
    for number, message in enumerate(messages, 1):
        role = _role(message, number)
        if role == "tool":
            if not turns or isinstance(turns[-1], UserTurn):
                raise _wrong(number, "a tool message needs an assistant message before it")
            outputs.append((number, message))
            continue
        called = _add_outputs(turns, outputs, called)
        content = _either(message, ("content", "value"), number)
        if role == "system":
            if number != 1:
                raise _wrong(number, "the role system may only be the first message")
            system = _text(content, number)
        elif role == "user":
            turns.append(UserTurn(_text(content, number)))
        else:
            calls, made = _calls(message, role, content, number)
            said = None if role == _CALL else content
            blocks, called = _answer_blocks(message, said, calls, called, number)
            if calls:
                blocks.append(ToolCalls(calls))
                called = made
            _add_answer(turns, AssistantTurn(tuple(blocks), _supervised(message, number)), number)
    _add_outputs(turns, outputs, called)
    done = tuple(
        replace(turn, blocks=merge_blocks(turn.blocks)) if isinstance(turn, AssistantTurn) else turn
        for turn in turns
    )
    ended = empty_answer and isinstance(last := done[-1], AssistantTurn) and not last.blocks
    _check_turns(done[:-1] if ended else done)
    return Conversation(
        turns=done, system=system, deliberation=deliberation, tools=read_tools(tools)
    )


def as_prompt(turns: Sequence[UserTurn | AssistantTurn]) -> tuple[UserTurn | AssistantTurn, ...]:
    """Turns as context: what is trained on is not part of a prompt's identity."""
    return tuple(
        replace(turn, supervised=True) if isinstance(turn, AssistantTurn) else turn
        for turn in turns
    )


def before_last_turn(conversation: Conversation) -> Conversation:
    """The prompt that the last turn answers."""
    return replace(conversation, turns=as_prompt(conversation.turns[:-1]))


def has_blocks(conversation: Conversation, *kinds: type[Block]) -> bool:
    """Whether an answer of a conversation has a block of these kinds."""
    return any(
        isinstance(block, kinds)
        for turn in conversation.turns
        if isinstance(turn, AssistantTurn)
        for block in turn.blocks
    )


def one_turn_each(conversation: Conversation) -> list[Conversation]:
    """A conversation for each turn that is trained on: it ends there, and the turns before are context."""
    return [
        replace(
            conversation,
            turns=(
                *(
                    replace(before, supervised=False)
                    if isinstance(before, AssistantTurn)
                    else before
                    for before in conversation.turns[:index]
                ),
                turn,
            ),
        )
        for index, turn in enumerate(conversation.turns)
        if isinstance(turn, AssistantTurn) and turn.supervised
    ]


def read_tools(tools: object) -> tuple[Mapping[str, Any], ...]:
    """The JSON schemas of tools, OpenAI's wrapper removed. They may be one JSON text.

    Edge     a description may be missing
    Raises   DataError when one has no name, its description is not text, or its parameters are not a
             JSON schema.
    """
    if tools is None or tools == "":
        return ()
    if isinstance(tools, str):
        try:
            tools = parse_json(tools)
            json.dumps(tools, ensure_ascii=False).encode()  # fails on a lone surrogate
        except UnicodeEncodeError:
            raise DataError("tools is text, and not JSON of Unicode text") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"tools is text, and not JSON: {error}") from None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise DataError("tools is not a list")
    functions = []
    for number, given in enumerate(tools, 1):
        tool = given.get("function", given) if isinstance(given, Mapping) else given
        if not isinstance(tool, Mapping) or not NAME.fullmatch(str(tool.get("name", ""))):
            raise DataError(f"tool {number} has no name of letters, digits, '_', '.' and '-'")
        where = f"tool {number} ({tool['name']})"
        if not isinstance(tool.get("description", ""), str | None):
            raise DataError(f"{where}: the description is not text")
        TOOL_KEYS.check(tool, where)
        parameters = tool.get("parameters")
        check_schema(parameters, f"{where}: parameters")
        if parameters and not {"type", "properties", "$ref", "anyOf", "oneOf"} & parameters.keys():
            raise DataError(
                f"{where}: parameters is not a JSON schema: it has no type and no properties",
                fix='Use {"type": "object", "properties": {...}}',
            )
        functions.append({key: value for key, value in tool.items() if value is not None})
    return tuple(functions)


def to_messages(
    system: str | None, turns: Sequence[UserTurn | AssistantTurn]
) -> list[dict[str, Any]]:
    """The messages that `read_conversation` reads as these turns, as JSON values."""
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        if isinstance(turn, UserTurn):
            templated = _TEMPLATED.match(turn.text)
            asked = [{"type": "text", "text": turn.text}] if templated else turn.text
            messages.append({"role": "user", "content": asked})
            continue
        text = turn.text
        plain = all(isinstance(block, Response) for block in turn.blocks)
        content: Any = text
        if not plain or _MARKUP.search(text) or _control_token(text):  # blocks are read as they are
            content = {"blocks": [_plain(block) for block in turn.blocks]}
        weight = {} if turn.supervised else {"weight": 0}
        messages.append({"role": "assistant", "content": content, **weight})
    return messages


def _plain(block: Block) -> dict[str, Any]:
    if isinstance(block, Thoughts):
        return {"type": "thoughts", "text": block.text}
    if isinstance(block, Response):
        return {"type": "response", "text": block.text}
    if isinstance(block, ToolCalls):
        calls = [{"name": call.name, "arguments": call.arguments} for call in block.calls]
        return {"type": "tool_calls", "calls": calls}
    return {"type": "tool_outputs", "outputs": [{"output": output} for output in block.outputs]}


def merge_blocks(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Blocks with neighbours of one kind joined and empty ones removed, as they are read back."""
    merged: list[Block] = []
    for block in blocks:
        before = merged[-1] if merged else None
        empty = (isinstance(block, Response | Thoughts) and not block.text) or (
            isinstance(block, ToolCalls) and not block.calls
        )
        if empty or (isinstance(block, ToolOutputs) and not block.outputs):
            continue
        if isinstance(block, Response) and isinstance(before, Response):
            merged[-1] = Response(before.text + block.text)
        elif isinstance(block, Thoughts) and isinstance(before, Thoughts):
            merged[-1] = Thoughts(before.text + block.text)
        elif isinstance(block, ToolOutputs) and isinstance(before, ToolOutputs):
            merged[-1] = ToolOutputs(before.outputs + block.outputs)
        else:
            merged.append(block)
    return tuple(merged)


def _check_turns(turns: Sequence[UserTurn | AssistantTurn]) -> None:
    """Raise DataError for turns that could not be read back from their text."""
    for turn in turns:
        if isinstance(turn, UserTurn):
            continue
        if not turn.blocks:
            raise EmptyAnswerError("an assistant's turn is empty", fix="Remove the row or the turn")
        for before, block in zip((None, *turn.blocks), turn.blocks, strict=False):
            if isinstance(block, ToolOutputs) and not isinstance(before, ToolCalls):
                raise DataError("tool outputs need tool calls directly before them")
            if isinstance(before, ToolCalls) and not isinstance(block, ToolOutputs):
                raise DataError("tool calls in the middle of a turn need their outputs after them")


def _wrong(number: int, what: str, fix: str = "") -> DataError:
    return DataError(f"message {number}: {what}", fix=fix)


@dataclass(frozen=True)
class _Called:
    """Identifier and tool of a call, for its output; "" for a call without identifier."""

    id: str
    name: str


def _role(message: object, number: int) -> str:
    """The role of a message, whose keys are checked: "system", "user", "assistant", "tool" or _CALL."""
    if not isinstance(message, Mapping):
        raise _wrong(number, "is not an object")
    stated = [message[key] for key in ("role", "from") if message.get(key) is not None]
    roles = [
        _ROLES.get(written.lower()) if isinstance(written, str) else None for written in stated
    ]
    role = roles[0] if roles else None
    if role is None:
        raise _wrong(number, f"unknown role {(stated or [None])[0]!r}")
    if roles[-1] != role:
        raise _wrong(number, f"role {stated[0]!r} and from {stated[-1]!r} are different")
    MESSAGE_KEYS.check(message, f"message {number}")
    if role not in ("assistant", _CALL):
        for key in (*THOUGHTS, "tool_calls", "function_call"):
            if message.get(key) not in (None, *NO_TEXT):
                raise _wrong(number, f"{key} in a message of the {role}")
        if _stated_learning(message, number):
            what = "only messages of the assistant are trained on"
            raise _wrong(number, f"asks to train on a message of the {role}; {what}")
    if role != "tool" and message.get("name") not in (None, ""):
        raise _wrong(number, f"name = {message['name']!r}, and no chat format writes names")
    for key in ("tool_call_id", "call_id", "tool_name"):
        if role != "tool" and message.get(key) not in (None, ""):
            raise _wrong(number, f"{key} in a message that is not of the role tool")
    return role


def _either(message: Mapping[str, Any], keys: Sequence[str], number: int) -> Any:
    """The value of one of several names of a key, one that is not empty first; None without one."""
    given = {key: message[key] for key in keys if message.get(key) is not None}
    values = {key: value for key, value in given.items() if value not in NO_TEXT} or given
    first = next(iter(values.values()), None)
    if first not in NO_TEXT and any(
        value is not first and value != first for value in values.values()
    ):
        raise _wrong(number, f"{' and '.join(values)} are different")
    return first


def _supervised(message: Mapping[str, Any], number: int) -> bool:
    stated = _stated_learning(message, number)
    return True if stated is None else stated


def _stated_learning(message: Mapping[str, Any], number: int) -> bool | None:
    """Whether a message is to be trained on; None: it does not state it."""
    stated: dict[str, bool] = {}
    for key in (*LOSS_KEYS, "masked"):
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise _wrong(
                number, f"{key} = {value!r}: a message is trained on whole (1) or not at all (0)"
            )
        stated[key] = bool(value) != (key == "masked")
    if len(set(stated.values())) > 1:
        raise _wrong(number, f"{' and '.join(stated)} disagree")
    return next(iter(stated.values()), None)


def _add_answer(turns: list[UserTurn | AssistantTurn], answer: AssistantTurn, number: int) -> None:
    before = turns[-1] if turns else None
    if not isinstance(before, AssistantTurn):
        turns.append(answer)
        return
    if before.supervised != answer.supervised:
        raise _wrong(number, "one turn has messages that are trained on and others that are not")
    first, last = merge_blocks(answer.blocks)[:1], merge_blocks(before.blocks)[-1:]
    if (
        first
        and last
        and type(first[0]) is type(last[0])
        and isinstance(first[0], Response | Thoughts)
    ):
        what = "a second answer of the assistant follows the first"
        raise _wrong(number, what, "Join them into one message, or add the user's between them")
    turns[-1] = replace(before, blocks=(*before.blocks, *answer.blocks))


def _add_outputs(
    turns: list[UserTurn | AssistantTurn],
    messages: list[tuple[int, Mapping[str, Any]]],
    called: list[_Called],
) -> list[_Called]:
    """Append the outputs of tool messages to the last turn; returns the calls that wait for outputs."""
    if not messages:
        return called
    last = turns[-1]
    assert isinstance(last, AssistantTurn)
    number = messages[0][0]
    texts = [_text(_either(message, ("content", "value"), at), at) for at, message in messages]
    outputs = _matched([message for _, message in messages], texts, called, number)
    messages.clear()
    turns[-1] = replace(last, blocks=(*last.blocks, outputs))
    return []


def _matched(
    outputs: Sequence[object], texts: Sequence[str], called: Sequence[_Called], number: int
) -> ToolOutputs:
    """The texts of outputs in the order of the calls.

    outputs   the objects of the texts, which may name the call

    Edge      "id" may be the message's own: it is a call's only where it is one of theirs
    """
    if called and len(called) != len(texts):
        raise _wrong(number, f"{len(texts)} tool messages after {len(called)} tool calls")
    known = {call.id for call in called} - {""}
    order: list[int] | None = None
    for keys, names in (
        (IDS, [call.id for call in called]),
        (NAMES, [call.name for call in called]),
    ):
        given = []
        for output in outputs:
            stated = dict(output) if isinstance(output, Mapping) else {}
            if str(stated.get("id")) not in known:
                stated.pop("id", None)
            given.append(str(_either(stated, keys, number) or ""))
        if not any(given) or not called:
            continue
        if not any(names):
            if len(called) > 1:
                raise _wrong(number, f"{keys[0]} is given, and the calls have no identifiers")
            continue
        if order is not None:  # by identifier: the names must agree
            placed = [given[position] for position in order]
            if any(name not in ("", call) for name, call in zip(placed, names, strict=True)):
                raise _wrong(number, f"{keys[0]} {placed} and the calls' {names} are different")
        elif given == names and len(set(names)) == len(names):
            order = list(range(len(names)))
        elif sorted(given) != sorted(names) or (given != names and len(set(names)) != len(names)):
            raise _wrong(number, f"{keys[0]} {given} does not match the calls' {names}")
        elif given != names:
            order = [given.index(name) for name in names]
    return ToolOutputs(tuple(texts if order is None else [texts[position] for position in order]))


def _text(content: object, number: int) -> str:
    """The text of a content: a string, {"text": ...}, {"parts": [...]} or a list of parts."""
    return "".join(text for _, text in _texts(content, number, thoughts=False))


def _texts(content: object, number: int, *, thoughts: bool = True) -> Iterator[tuple[bool, str]]:
    """The texts of a content, and whether each is a part of thoughts."""
    if isinstance(content, str):
        yield False, content
        return
    parts: Any = content
    if isinstance(content, Mapping) and "parts" in content:
        PARTS_KEYS.check(content, f"message {number}")
        parts = content["parts"]
    elif isinstance(content, Mapping):
        parts = [content]
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise _wrong(number, "the content is not text")
    for part in parts:
        if not isinstance(part, Mapping):
            raise _wrong(number, "the content is not text")
        kind, thought = part.get("type"), part.get("thought")
        if thought not in (None, True, False):
            raise _wrong(number, f"thought = {thought!r}, which is not true or false")
        if thoughts and (thought or kind in ("thinking", "reasoning")):
            THOUGHT_KEYS.check(part, f"message {number}")
            yield True, _text(_either(part, ("thinking", "reasoning", "text"), number), number)
            continue
        if thought or kind not in (None, "text", "input_text", "output_text"):
            shown = kind if kind is not None else "thought"
            raise _wrong(number, f"a part of the type {shown!r}; only text is supported")
        PART_KEYS.check(part, f"message {number}")
        text = _either(part, ("text", "value"), number)
        if not isinstance(text, str):
            raise _wrong(number, "the content is not text")
        yield False, text


def _calls(
    message: Mapping[str, Any], role: str, content: object, number: int
) -> tuple[tuple[ToolCall, ...], list[_Called]]:
    """The calls of an assistant's message outside of its blocks, and what their outputs are matched by."""
    given: list[Any] = list(_items(message, "tool_calls", number))
    if message.get("function_call") not in (None, *NO_TEXT):
        given.append(message["function_call"])
    if role == _CALL:
        try:
            written = parse_json(content) if isinstance(content, str) else content
        except (ValueError, RecursionError) as error:
            raise _wrong(number, f"the call is not JSON: {error}") from None
        given += written if isinstance(written, list) else [written]
    calls = tuple(_call(call, number) for call in given)
    return calls, _called(given, calls, number)


def _called(given: Sequence[Any], calls: Sequence[ToolCall], number: int) -> list[_Called]:
    return [
        _Called(str(_either(written, IDS, number) or ""), call.name)
        for written, call in zip(given, calls, strict=True)
    ]


def _answer_blocks(
    message: Mapping[str, Any],
    content: object,
    calls: Sequence[ToolCall],
    called: list[_Called],
    number: int,
) -> tuple[list[Block], list[_Called]]:
    """Thoughts and responses of an assistant's message, or the blocks that it spells out.

    Returns them and the calls among them that wait for their outputs; `called` are those before it.
    """
    stated = _either(message, THOUGHTS, number)
    if not isinstance(stated, str | None):
        raise _wrong(number, "the thoughts are not text")
    blocks: list[Block] = []
    if isinstance(content, Mapping) and "blocks" in content:
        BLOCKS_KEYS.check(content, f"message {number}")
        for given in _items(content, "blocks", number):
            block, called = _block(given, called, number)
            blocks.append(block)
    elif content is not None:
        for is_thoughts, text in _texts(content, number):
            blocks += [Thoughts(text)] if is_thoughts else _untagged(text, number)
    elif not calls and stated is None:
        raise _wrong(number, "an assistant message without content")
    before = merge_blocks(blocks)[:1]
    if stated and before and isinstance(before[0], Thoughts):
        if before[0].text.strip() != stated.strip():
            raise _wrong(number, "thoughts in a key and others in the content")
    elif stated:
        blocks.insert(0, Thoughts(stated))
    return blocks, called if blocks and isinstance(blocks[-1], ToolCalls) else []


def _untagged(text: str, number: int) -> list[Block]:
    """The response that a text is, with the thoughts that it begins with between tags."""
    if not _MARKUP.search(text):
        return [Response(text)]
    tagged = _TAGGED.fullmatch(text)
    markup = _MARKUP.search(text if tagged is None else tagged[3])
    if tagged is None or markup is not None:
        shown = markup.group() if markup else THINK
        raise _wrong(
            number,
            f"the content has {THINK} or {THINK_END}, and is not {THINK} thoughts {THINK_END} answer"
            if shown in (THINK, THINK_END)
            else f"the content has {shown}, the markup of a model for thoughts or tool calls",
            fix="Put thoughts into reasoning_content and calls into tool_calls; "
            "a content in blocks may have the tags as text",
        )
    _, thoughts, response = tagged.groups()
    return [Thoughts(thoughts.strip("\n")), Response(response.lstrip("\n"))]


def check_control_tokens(messages: Sequence[object]) -> None:
    """Check that no text of a row spells out the control tokens of a chat format.

    The model would learn to spell them out. A content in blocks, or in parts, may have them as
    text.

    Raises   DataError for one in an answer, and for a question that begins as a conversation does.
    """
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            continue
        content = _either(message, ("content", "value"), number)
        if _role(message, number) == "assistant":
            spelled = isinstance(content, Mapping) and "blocks" in content
            text = (
                "" if content is None or spelled else "".join(t for _, t in _texts(content, number))
            )
            if token := _control_token(text):
                raise _wrong(
                    number,
                    f"the content has {token}, a control token, which would be learned in letters",
                    fix="Remove it: the chat format ends each turn; a content in blocks may have it as text",
                )
        elif isinstance(content, str) and (begun := _TEMPLATED.match(content)):
            raise _wrong(
                number,
                f"the content begins with {begun[1]}: it is a conversation in a chat format already",
                fix="Give its messages; a content in parts may begin with it as text",
            )


def _control_token(text: str) -> str:
    """The first control token that the text of an answer spells out, "" without one.

    Edge     <s> and </s> strike text out in HTML: </s> at the end without its <s> is one
    """
    if token := _CONTROL.search(text):
        return token.group()
    if not (ended := _ENDED.search(text)):
        return ""
    opened = text.count("<s>") - text.lstrip().startswith("<s>")
    return ended[1] if ended[1] == "<eos>" or text.count("</s>") > opened else ""


def _block(block: object, called: list[_Called], number: int) -> tuple[Block, list[_Called]]:
    """A block, and the calls that wait for their outputs after it."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or str(kind) not in BLOCK_KEYS:
        raise _wrong(number, f"unknown block {kind!r}: {', '.join(BLOCK_KEYS)}")
    BLOCK_KEYS[str(kind)].check(block, f"message {number}")
    if kind in ("thoughts", "response"):
        text = _text(block.get("text"), number)
        return (Thoughts(text) if kind == "thoughts" else Response(text)), called
    if kind == "tool_calls":
        given = _items(block, "calls", number)
        calls = tuple(_call(call, number) for call in given)
        return ToolCalls(calls), _called(given, calls, number)
    outputs = _items(block, "outputs", number)
    texts = [_output(output, number) for output in outputs]
    return _matched(outputs, texts, called, number), []


def _items(holder: Mapping[str, Any], key: str, number: int) -> Sequence[Any]:
    """The list under a key; empty when it is absent or null."""
    items = holder.get(key)
    if items is None:
        return ()
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise _wrong(number, f"{key} is not a list")
    return items


def _output(output: object, number: int) -> str:
    if not isinstance(output, Mapping):
        return _text(output, number)
    OUTPUT_KEYS.check(output, f"message {number}")
    return _text(output.get("output"), number)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")  # which has neither NaN nor Infinity


def _call(call: object, number: int) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not NAME.fullmatch(str(function.get("name", "")))
    ):
        raise _wrong(number, "a tool call needs a name of letters, digits, '_', '.' and '-'")
    name = function["name"]
    if call.get("name") not in (None, "", name):
        raise _wrong(number, f"the call of {name} has the name {call['name']!r} too")
    for holder in (call, function):
        CALL_KEYS.check(holder, f"message {number}, the call {name}")
    written = [_either(holder, ARGUMENTS, number) for holder in (call, function)]
    arguments = _either(
        dict(zip(("the call's", "the function's"), written, strict=True)),
        ("the call's", "the function's"),
        number,
    )
    arguments = "{}" if arguments is None else arguments
    try:
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        value = json.loads(arguments, parse_constant=_no_number, object_pairs_hook=once_each)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(number, f"the arguments of the call {name} are not JSON: {error}") from None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        raise _wrong(
            number, f"the arguments of the call {name} are JSON within JSON", "Encode them once"
        )
    return ToolCall(name, arguments.strip())
