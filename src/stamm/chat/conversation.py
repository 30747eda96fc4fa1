"""Conversations: messages of a data set as typed turns, checked once when they are read.

A conversation is a system message (optional), the developer settings (deliberation, tools) and
turns of the user and the assistant. An assistant's turn is a sequence of blocks: thoughts, tool
calls, tool outputs, responses. Rows are read in the forms that public data sets have: OpenAI's
(`tool_calls`, messages of the role "tool"), TRL's conversational columns, and Apertus' (`content`
as {"blocks": [...]} or {"parts": [...]}); they all become the same blocks.

Source   swiss-ai/apertus_format, docs/format.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stamm.base.errors import DataError
from stamm.chat.tool_types import check_schema

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of tools: they are written between quotes without escapes."""


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
    """Blocks of the assistant between two turns of the user, tool outputs included."""

    blocks: tuple[Block, ...]


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

    Raises   DataError naming the message, from 1, that cannot be read.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError("messages is not a list with at least one message")
    system: str | None = None
    turns: list[UserTurn | AssistantTurn] = []
    for number, message in enumerate(messages, 1):
        role, content = _role_and_content(message, number)
        if role in ("system", "developer"):
            if number != 1:
                raise _wrong(number, f"the role {role} may only be the first message")
            system = _text(content, number)
        elif role == "user":
            turns.append(UserTurn(_text(content, number)))
        elif role == "tool":
            if not turns or isinstance(turns[-1], UserTurn):
                raise _wrong(number, "a tool message needs an assistant message before it")
            turns[-1] = AssistantTurn((*turns[-1].blocks, ToolOutputs((_text(content, number),))))
        else:
            blocks = tuple(_assistant_blocks(message, content, number))
            if turns and isinstance(turns[-1], AssistantTurn):
                turns[-1] = AssistantTurn((*turns[-1].blocks, *blocks))
            else:
                turns.append(AssistantTurn(blocks))
    done = tuple(
        AssistantTurn(merge_blocks(turn.blocks)) if isinstance(turn, AssistantTurn) else turn
        for turn in turns
    )
    ended = empty_answer and done[-1:] == (AssistantTurn(()),)
    _check_turns(done[:-1] if ended else done)
    return Conversation(
        turns=done, system=system, deliberation=deliberation, tools=read_tools(tools)
    )


def read_tools(tools: object) -> tuple[Mapping[str, Any], ...]:
    """The JSON schemas of tools, OpenAI's wrapper removed. They may be one JSON text.

    Raises   DataError when one has no name or no description, or its parameters are not a JSON schema.
    """
    if tools is None:
        return ()
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
            json.dumps(tools, ensure_ascii=False).encode()  # fails on a lone surrogate
        except (ValueError, RecursionError):
            raise DataError("tools is text, and not JSON of Unicode text") from None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise DataError("tools is not a list")
    found = []
    for number, given in enumerate(tools, 1):
        tool = given.get("function", given) if isinstance(given, Mapping) else given
        if not isinstance(tool, Mapping) or not NAME.fullmatch(str(tool.get("name", ""))):
            raise DataError(f"tool {number} has no name of letters, digits, '_', '.' and '-'")
        if not isinstance(tool.get("description"), str):
            raise DataError(f"tool {number} ({tool['name']}) has no description")
        check_schema(tool.get("parameters"), f"tool {number} ({tool['name']}): parameters")
        found.append(tool)
    return tuple(found)


def to_messages(
    system: str | None, turns: Sequence[UserTurn | AssistantTurn]
) -> list[dict[str, Any]]:
    """The messages that `read_conversation` reads as these turns, as JSON values."""
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        if isinstance(turn, UserTurn):
            messages.append({"role": "user", "content": turn.text})
        elif all(isinstance(block, Response) for block in turn.blocks):
            text = "".join(block.text for block in turn.blocks if isinstance(block, Response))
            messages.append({"role": "assistant", "content": text})
        else:
            blocks = [_plain(block) for block in turn.blocks]
            messages.append({"role": "assistant", "content": {"blocks": blocks}})
    return messages


def _plain(block: Block) -> dict[str, Any]:
    if isinstance(block, Thoughts):
        return {"type": "thoughts", "text": block.text}
    if isinstance(block, Response):
        return {"type": "response", "text": block.text}
    if isinstance(block, ToolCalls):
        calls = [{"name": call.name, "arguments": call.arguments} for call in block.calls]
        return {"type": "tool_calls", "calls": calls}
    return {"type": "tool_outputs", "outputs": [{"output": each} for each in block.outputs]}


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


def _wrong(number: int, what: str) -> DataError:
    return DataError(f"message {number}: {what}")


def _role_and_content(message: object, number: int) -> tuple[str, object]:
    if not isinstance(message, Mapping):
        raise _wrong(number, "is not an object")
    role = message.get("role", message.get("from"))
    role = {"human": "user", "gpt": "assistant", "ipython": "tool"}.get(str(role), role)
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise _wrong(number, f"unknown role {role!r}")
    return str(role), message.get("content", message.get("value"))


def _text(content: object, number: int) -> str:
    """The text of a content: a string, {"text": ...}, {"parts": [...]} or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    parts = content.get("parts") if isinstance(content, Mapping) else content
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise _wrong(number, "the content is not text")


def _assistant_blocks(message: Mapping[str, Any], content: object, number: int) -> Iterable[Block]:
    thoughts = message.get("reasoning_content", message.get("thinking"))
    if isinstance(thoughts, str):
        yield Thoughts(thoughts)
    calls = message.get("tool_calls")
    if isinstance(content, Mapping) and "blocks" in content:
        for block in _items(content, "blocks", number):
            yield _block(block, number)
    elif content is not None:
        yield Response(_text(content, number))
    elif not calls and thoughts is None:
        raise _wrong(number, "an assistant message without content")
    if calls:
        yield ToolCalls(
            tuple(_call(call, number) for call in _items(message, "tool_calls", number))
        )


def _block(block: object, number: int) -> Block:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(block, Mapping):
        if kind in ("thoughts", "response"):
            text = _text(block.get("text"), number)
            return Thoughts(text) if kind == "thoughts" else Response(text)
        if kind == "tool_calls":
            return ToolCalls(tuple(_call(call, number) for call in _items(block, "calls", number)))
        if kind == "tool_outputs":
            outputs = _items(block, "outputs", number)
            return ToolOutputs(tuple(_output(each, number) for each in outputs))
    raise _wrong(number, f"unknown block {kind!r}: thoughts, tool_calls, tool_outputs, response")


def _items(holder: Mapping[str, Any], key: str, number: int) -> Sequence[Any]:
    """The list under a key; empty when it is absent or null."""
    found = holder.get(key)
    if found is None:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise _wrong(number, f"{key} is not a list")
    return found


def _output(output: object, number: int) -> str:
    return _text(output.get("output") if isinstance(output, Mapping) else output, number)


def _call(call: object, number: int) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not NAME.fullmatch(str(function.get("name", ""))):
        raise _wrong(number, "a tool call needs a name of letters, digits, '_', '.' and '-'")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            name = function["name"]
            raise _wrong(number, f"the arguments of the call {name} are not JSON") from None
        return ToolCall(function["name"], arguments.strip())
    try:
        return ToolCall(function["name"], json.dumps(arguments, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        name = function["name"]
        raise _wrong(number, f"the arguments of the call {name} are not JSON") from None
