"""Messages and tools as chat templates take them, and marks that verify what a template writes.

A mark is a character for private use, put before a text: the template writes it where it writes the text.
Marked are contents, thoughts, outputs, names of calls, the keys and texts of their arguments; of declared
tools, names, descriptions and the names of parameters. Numbers follow the mark of their key.

Source   transformers, "Writing a chat template" and "Tool use": arguments of calls are objects
Checked  tests/unit/align/test_template_tools.py
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.chat.conversation import (
    AssistantTurn,
    Block,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
)

FIRST_MARK = 0x100000
"""Marks are the characters from here on, of plane 16."""
_ANY_MARK = re.compile(f"[{chr(FIRST_MARK)}-\U0010ffff]")
_ID_LETTERS = 9  # of the identifier of a call, as Mistral's templates require

Message = dict[str, Any]


@dataclass(frozen=True)
class Spelling:
    """The keys and forms in which a template reads messages.

    thoughts         the key of an answer's thoughts
    arguments_text   whether arguments of calls are JSON text; False: objects
    """

    thoughts: str = "reasoning_content"
    arguments_text: bool = False


@dataclass
class _Mark:
    """A marked text. `message`: its number, -1 for a tool; `numbers`: values written after it."""

    message: int
    what: str
    text: str
    needed: bool
    numbers: list[Any]


@dataclass(frozen=True)
class TextSpan:
    """Where a text of a message is, in characters of the rendered conversation; `end` is exclusive."""

    message: int
    start: int
    end: int


def steps_of(turn: AssistantTurn) -> list[tuple[Block, ...]]:
    """The blocks of each message of a turn, with the tool outputs that follow it."""
    steps: list[list[Block]] = [[]]
    for block in turn.blocks:
        if steps[-1] and isinstance(steps[-1][-1], ToolOutputs):
            steps.append([])
        steps[-1].append(block)
    return [tuple(step) for step in steps]


def messages_of(
    system: str | None, turns: Sequence[UserTurn | AssistantTurn], spelling: Spelling
) -> list[Message]:
    """The messages of a conversation. Identifiers of calls are made from their place and content.

    Raises   DataError for thoughts after a response, and outputs that are not one for each call
    """
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        if isinstance(turn, UserTurn):
            messages.append({"role": "user", "content": turn.text})
            continue
        for step in steps_of(turn):
            messages += _step(step, len(messages), spelling)
    return messages


def tools_of(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Declared tools in OpenAI's form, as transformers gives them to a template; None without one."""
    return [{"type": "function", "function": dict(tool)} for tool in tools] or None


def _step(step: Sequence[Block], number: int, spelling: Spelling) -> Iterator[Message]:
    """The message of the assistant, then those of the tools."""
    message: Message = {"role": "assistant", "content": ""}
    calls: tuple[ToolCall, ...] = ()
    outputs: tuple[str, ...] = ()
    for block in step:
        if isinstance(block, Thoughts):
            if message["content"] or calls:
                raise unsupported("thoughts after a response")
            message[spelling.thoughts] = block.text
        elif isinstance(block, Response):
            message["content"] += block.text
        elif isinstance(block, ToolCalls):
            calls = block.calls
        else:
            outputs = block.outputs
    ids = [
        sha256_value([number, index, call.name, call.arguments])[:_ID_LETTERS]
        for index, call in enumerate(calls)
    ]
    if calls:
        message["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for id_, call in zip(ids, calls, strict=True)
        ]
        if spelling.arguments_text:
            _write_arguments(message)
    yield message
    if outputs and len(outputs) != len(calls):
        raise DataError(f"{len(outputs)} tool outputs after {len(calls)} tool calls")
    for id_, call, output in zip(ids, calls, outputs, strict=False):
        yield {"role": "tool", "tool_call_id": id_, "name": call.name, "content": output}


def _write_arguments(message: Message) -> None:
    for call in message.get("tool_calls", ()):
        function = call["function"]
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)


class Marks:
    """The marks of one conversation.

    messages   of `messages_of`
    tools      of `tools_of`
    answers    numbers of the messages whose thoughts have to be written; elsewhere they may be left out

    Raises   DataError when a text spells one of the control tokens
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        spelling: Spelling,
        *,
        answers: Collection[int],
        control_tokens: Collection[str],
    ) -> None:
        self._marks: list[_Mark] = []
        self._spelling, self._answers = spelling, answers
        self._roles = [message["role"] for message in messages]
        self.tools = [self._tool(tool) for tool in tools] if tools else None
        self.messages = [self._message(message, number) for number, message in enumerate(messages)]
        texts = [(mark.what, mark.text) for mark in self._marks]
        texts += [("a declared tool", text) for text in _strings(tools)]
        for what, text in texts:
            if any(token in text for token in control_tokens):
                verb = "spell" if what.startswith(("thoughts", "the arguments")) else "spells"
                what = what.replace("this ", "a ") if what.startswith("this ") else what
                raise DataError(f"{what} {verb} a control token of the model")

    def places(self, text: str, marked: str) -> list[TextSpan]:
        """Where the texts of messages are.

        text     the rendered conversation
        marked   the same with marks

        Raises   DataError when one is left out, changed, or written twice or in another order
        """
        spans: list[tuple[_Mark, int, int]] = []
        earlier = last = -1  # the last character of the messages before, and of this one
        message = -1
        for number, mark in enumerate(self._marks, FIRST_MARK):
            at = marked.find(chr(number))
            if at < 0 and not mark.needed:
                continue
            forms = (mark.text, json.dumps(mark.text, ensure_ascii=False)[1:-1])
            form = next((form for form in forms if marked.startswith(form, at + 1)), None)
            if at < 0 or form is None or not _follow(marked, at + 1 + len(form), mark):
                raise unsupported(f"{mark.what}, or changes it")
            if mark.message >= 0:
                if mark.message != message:
                    message, earlier = mark.message, last
                ordered = self._roles[message] == "system" or at > earlier
                if not ordered or marked.count(chr(number)) > 1:
                    raise unsupported(f"{mark.what}, or changes it")
                if self._roles[message] != "system":
                    last = max(last, at)
                spans.append((mark, at, at + 1 + len(form)))
        if (
            marked.translate(dict.fromkeys(range(FIRST_MARK, FIRST_MARK + len(self._marks))))
            != text
        ):
            raise DataError("the chat template writes a message by how its text begins")
        before = [match.start() for match in _ANY_MARK.finditer(marked)]
        return [
            TextSpan(
                mark.message, start - bisect_left(before, start), end - bisect_left(before, end)
            )
            for mark, start, end in spans
        ]

    def _add(self, text: str, what: str, message: int, *, needed: bool = True) -> str:
        """A text with its mark before its first letter."""
        blanks = len(text) - len(text.lstrip())
        mark = chr(FIRST_MARK + len(self._marks))
        self._marks.append(_Mark(message, what, text.strip(), needed, []))
        return text[:blanks] + mark + text[blanks:]

    def _message(self, message: Message, number: int) -> Message:
        marked = dict(message)
        if message.get(self._spelling.thoughts, "").strip():
            marked[self._spelling.thoughts] = self._add(
                message[self._spelling.thoughts],
                "thoughts of this assistant message",
                number,
                needed=number in self._answers,
            )
        if message["content"].strip():
            marked["content"] = self._add(
                message["content"], f"this {message['role']} message", number
            )
        if "tool_calls" in message:
            marked["tool_calls"] = [self._call(call, number) for call in message["tool_calls"]]
            if self._spelling.arguments_text:
                _write_arguments(marked)
        return marked

    def _call(self, call: Mapping[str, Any], number: int) -> dict[str, Any]:
        function = call["function"]
        what = f"the call of {function['name']}"
        name = self._add(function["name"], what, number)
        arguments = function["arguments"]
        if self._spelling.arguments_text:
            arguments = json.loads(arguments)
        value = self._value(arguments, f"the arguments of {what}", number)
        return {**call, "function": {**function, "name": name, "arguments": value}}

    def _value(self, value: Any, what: str, number: int) -> Any:
        """A value of JSON with marks at its texts and keys; the numbers follow the mark before them."""
        if isinstance(value, str):
            return self._add(value, what, number)
        if isinstance(value, list):
            return [self._value(item, what, number) for item in value]
        if isinstance(value, dict):
            return {
                self._add(key, what, number): self._value(item, what, number)
                for key, item in value.items()
            }
        self._marks[-1].numbers.append(value)
        return value

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        function = tool["function"]
        what = f"the declared tool {function['name']}"
        marked = {**function, "name": self._add(function["name"], what, -1)}
        if function.get("description", "").strip():
            marked["description"] = self._add(function["description"], what, -1)
        if function.get("parameters"):
            marked["parameters"] = self._schema(function["parameters"], what)
        return {**tool, "function": marked}

    def _schema(self, schema: Mapping[str, Any], what: str) -> dict[str, Any]:
        """A JSON schema with marks at the names of its parameters, also where they are required."""
        properties = schema.get("properties")
        marked = dict(schema)
        if isinstance(properties, Mapping) and properties:
            names = {name: self._add(name, what, -1) for name in properties}
            marked["properties"] = {
                names[name]: self._described(spec, what) for name, spec in properties.items()
            }
            if isinstance(schema.get("required"), list):
                marked["required"] = [names.get(name, name) for name in schema["required"]]
        return marked

    def _described(self, spec: Any, what: str) -> Any:
        if not isinstance(spec, Mapping):
            return spec
        marked = self._schema(spec, what)
        if isinstance(spec.get("description"), str) and spec["description"].strip():
            marked["description"] = self._add(spec["description"], what, -1)
        return marked


def unsupported(what: str) -> DataError:
    """The error for what a template does not write."""
    return DataError(f"the chat template of this model does not write {what}")


def _follow(marked: str, start: int, mark: _Mark) -> bool:
    """Whether the numbers of a mark are written after it, in order, before the next mark."""
    if not mark.numbers:
        return True
    after = _ANY_MARK.search(marked, start)
    end = after.start() if after else len(marked)
    for value in mark.numbers:
        places = [
            (position + len(form))
            for form in (json.dumps(value), str(value))
            if (position := marked.find(form, start, end)) >= 0
        ]
        if not places:
            return False
        start = min(places)
    return True


def _strings(value: Any) -> Iterator[str]:
    """All texts and keys of a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)
