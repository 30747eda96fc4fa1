"""Read a rendered conversation back: from token ids or segments to the same turns and blocks.

`parse(render(conversation)) == conversation` for every conversation that `read_conversation`
accepts, if tool outputs are JSON: outputs carry no control token, so that others cannot be
distinguished from the text after them. A model's own tokens are read with `parse_assistant`, which never raises on
malformed text: what it cannot read stays text.

Checked  tests/unit/chat/test_render.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from stamm.base.errors import DataError
from stamm.base.json_text import RepeatedKeyError, parse_json
from stamm.chat.conversation import (
    NAME,
    AssistantTurn,
    Block,
    Response,
    Thoughts,
    ToolCall,
    ToolCalls,
    ToolOutputs,
    UserTurn,
    merge_blocks,
)
from stamm.chat.render import (
    ASSISTANT_END,
    ASSISTANT_START,
    INNER_PREFIX,
    INNER_SUFFIX,
    SYSTEM_END,
    SYSTEM_START,
    TOOLS_PREFIX,
    TOOLS_SUFFIX,
    USER_END,
    USER_START,
    ChatTokenizer,
    Segment,
)

_DECODER = json.JSONDecoder()


def parse(segments: Sequence[Segment]) -> tuple[str, tuple[UserTurn | AssistantTurn, ...]]:
    """The system message and the turns of segments; the developer block is skipped.

    Raises   DataError when a block is not closed.
    """
    system = ""
    turns: list[UserTurn | AssistantTurn] = []
    position = 0
    while position < len(segments):
        opening = segments[position]
        closing = {
            SYSTEM_START: SYSTEM_END,
            USER_START: USER_END,
            ASSISTANT_START: ASSISTANT_END,
        }.get(opening.text)
        position += 1
        if not opening.control or closing is None:
            continue
        body, position = _until(segments, position, closing)
        if opening.text == SYSTEM_START:
            system = "".join(segment.text for segment in body)
        elif opening.text == USER_START:
            turns.append(UserTurn("".join(segment.text for segment in body)))
        else:
            turns.append(AssistantTurn(parse_assistant(body)))
    return system, tuple(turns)


def segments_of_ids(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[Segment]:
    """The control tokens and texts of token ids; nothing is marked as supervised."""
    segments: list[Segment] = []
    text: list[int] = []
    for token_id in ids:
        control = tokenizer.control_token(token_id)
        if control is None:
            text.append(token_id)
            continue
        segments += [Segment(tokenizer.decode(text))] if text else []
        segments.append(Segment(control, control=True))
        text = []
    return segments + ([Segment(tokenizer.decode(text))] if text else [])


def parse_assistant(body: Sequence[Segment]) -> tuple[Block, ...]:
    """The blocks between <|assistant_start|> and <|assistant_end|>, which may be missing.

    Calls without outputs stay text, except at the end: `read_conversation` refuses them elsewhere.
    """
    blocks: list[Block] = []
    as_text: Block = Response("")  # the last calls, if they are not followed by outputs
    thinking = calling = after_calls = False
    for segment in body:
        if segment.control:
            if segment.text == ASSISTANT_END:
                break
            thinking = {INNER_PREFIX: True, INNER_SUFFIX: False}.get(segment.text, thinking)
            calling = segment.text == TOOLS_PREFIX
            after_calls = segment.text == TOOLS_SUFFIX
            continue
        text = segment.text
        if not text:
            continue
        called = bool(blocks) and isinstance(blocks[-1], ToolCalls)
        read = _read_array(text) if called and after_calls else None
        if called and read is None:
            blocks[-1] = as_text
        calls = _read_calls(text) if calling else None
        if calls is not None:
            blocks.append(ToolCalls(calls))
            as_text = Thoughts(text) if thinking else Response(text)
            continue
        if read is not None:
            outputs, text = read
            blocks.append(ToolOutputs(outputs))
        blocks.append(Thoughts(text) if thinking else Response(text))
        after_calls = False
    return merge_blocks(blocks)


def _until(segments: Sequence[Segment], position: int, closing: str) -> tuple[list[Segment], int]:
    for end in range(position, len(segments)):
        if segments[end].control and segments[end].text == closing:
            return list(segments[position:end]), end + 1
    raise DataError(f"a conversation without {closing} at the end of a block")


def _read_array(text: str) -> tuple[tuple[str, ...], str] | None:
    """The texts of a JSON array's values at the beginning of `text`, and what follows it."""
    if not text.startswith("["):
        return None
    values: list[str] = []
    position = 1
    while True:
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        values.append(text[position:end])
        if text[end : end + 1] == "]":
            return tuple(values), text[end + 1 :]
        if text[end : end + 2] != ", ":
            return None
        position = end + 2


def _read_calls(text: str) -> tuple[ToolCall, ...] | None:
    """The calls of `[{"name": arguments}, …]`, arguments as written; None when it is malformed."""
    read = _read_array(text)
    if read is None or read[1]:
        return None
    calls = []
    for value in read[0]:
        try:
            call = parse_json(value)
        except (RepeatedKeyError, RecursionError):
            return None
        if not isinstance(call, dict) or len(call) != 1:
            return None
        (name,) = call
        arguments = value[value.index(":") + 1 : -1].strip()  # no name has a colon
        if not NAME.fullmatch(name) or not _is_json(arguments):
            return None
        calls.append(ToolCall(name, arguments))
    return tuple(calls)


def _is_json(text: str) -> bool:
    """False for what follows a key that is given twice, too."""
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True
