"""The chat format: a conversation as control tokens and text, with what a model is trained on.

The blocks and their order are those of Apertus:

    <s> <|system_start|>…<|system_end|> <|developer_start|>Deliberation: …
    Tool Capabilities: …<|developer_end|> <|user_start|>…<|user_end|>
    <|assistant_start|> <|inner_prefix|>thoughts <|tools_prefix|>[{"name": …}]<|tools_suffix|>
    [outputs] <|inner_suffix|>response <|assistant_end|>

without blanks or line breaks between blocks. The last turn of the assistant is closed, as in Apertus'
training code; the published template leaves it open, and a model trained on that never learns to
stop. A missing system message is an empty system block, as in training.

Source   swiss-ai/apertus_format; Apertus technical report, arXiv 2509.14233, section on SFT
Checked  tests/unit/chat/test_render.py, tests/unit/chat/test_template.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stamm.chat.conversation import (
    AssistantTurn,
    Block,
    Conversation,
    Response,
    Thoughts,
    ToolCalls,
    ToolOutputs,
    UserTurn,
)
from stamm.chat.tool_types import declare_tools

BEGIN = "<s>"
SYSTEM_START, SYSTEM_END = "<|system_start|>", "<|system_end|>"
DEVELOPER_START, DEVELOPER_END = "<|developer_start|>", "<|developer_end|>"
USER_START, USER_END = "<|user_start|>", "<|user_end|>"
ASSISTANT_START, ASSISTANT_END = "<|assistant_start|>", "<|assistant_end|>"
INNER_PREFIX, INNER_SUFFIX = "<|inner_prefix|>", "<|inner_suffix|>"
TOOLS_PREFIX, TOOLS_SUFFIX = "<|tools_prefix|>", "<|tools_suffix|>"
ANSWER_TOOL = "display_answers"
"""A call of this tool alone is the answer itself: thoughts end before it."""


class ChatTokenizer(Protocol):
    """Tokenizer methods that the chat format needs. Texts never become control tokens."""

    def control_id(self, token: str) -> int:
        """The id of a control token."""

    def control_token(self, token_id: int) -> str | None:
        """The control token of an id; None for an id of text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the first and last character (exclusive) of each."""


@dataclass(frozen=True)
class Segment:
    """A piece of a rendered conversation.

    text         a control token, or text
    control      True for a control token
    supervised   True for what the model is trained to produce: the body and the end token of the
                 assistant's supervised turns, without tool outputs
    """

    text: str
    control: bool = False
    supervised: bool = False


@dataclass(frozen=True)
class EncodedChat:
    """Token ids of a conversation, and for each whether the model is trained to produce it."""

    ids: list[int]
    supervised: list[bool]


def render(conversation: Conversation, *, prompt: bool = False) -> list[Segment]:
    """The segments of a conversation, in order.

    prompt   end where a model continues: after <|assistant_start|>, or after the outputs of tools
             that the last turn ends with
    """
    segments = list(_head(conversation))
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            segments += [_control(USER_START), Segment(turn.text), _control(USER_END)]
        else:
            segments += (
                segment if turn.supervised else replace(segment, supervised=False)
                for segment in _assistant(turn)
            )
    last = conversation.turns[-1] if conversation.turns else None
    blocks = last.blocks if isinstance(last, AssistantTurn) else ()
    if prompt and blocks and isinstance(blocks[-1], ToolOutputs):
        segments.pop()  # its end token: the turn continues
    elif prompt:
        segments.append(_control(ASSISTANT_START))
    return [segment for segment in segments if segment.text]


def text_of(segments: Sequence[Segment]) -> str:
    """The rendered text, control tokens spelled out."""
    return "".join(segment.text for segment in segments)


def encode_segments(segments: Sequence[Segment], tokenizer: ChatTokenizer) -> EncodedChat:
    """The ids of segments. Text between two control tokens is encoded as one.

    A token with characters both of a tool output and of the assistant is not supervised.
    """
    ids: list[int] = []
    supervised: list[bool] = []
    run: list[Segment] = []
    for segment in (*segments, None):
        if segment is not None and not segment.control:
            run.append(segment)
            continue
        for token, keep in _encode_run(run, tokenizer):
            ids.append(token)
            supervised.append(keep)
        run = []
        if segment is not None:
            ids.append(tokenizer.control_id(segment.text))
            supervised.append(segment.supervised)
    return EncodedChat(ids, supervised)


def encode_conversation(
    conversation: Conversation, tokenizer: ChatTokenizer, *, prompt: bool = False
) -> EncodedChat:
    """`encode_segments` of `render`."""
    return encode_segments(render(conversation, prompt=prompt), tokenizer)


def _control(token: str, supervised: bool = False) -> Segment:
    return Segment(token, control=True, supervised=supervised)


def _head(conversation: Conversation) -> Iterator[Segment]:
    yield _control(BEGIN)
    yield _control(SYSTEM_START)
    yield Segment(conversation.system or "")
    yield _control(SYSTEM_END)
    yield _control(DEVELOPER_START)
    deliberation = "enabled" if conversation.deliberation else "disabled"
    tools = "Tool Capabilities: disabled"
    if conversation.tools:
        tools = "Tool Capabilities:\n" + declare_tools(conversation.tools)
    yield Segment(f"Deliberation: {deliberation}\n{tools}")
    yield _control(DEVELOPER_END)


def _assistant(turn: AssistantTurn) -> Iterator[Segment]:
    yield _control(ASSISTANT_START)
    thinking = False
    for block in turn.blocks:
        if isinstance(block, Thoughts) and not thinking:
            thinking = True
            yield _control(INNER_PREFIX, supervised=True)
        elif thinking and (isinstance(block, Response) or _is_answer(block)):
            thinking = False
            yield _control(INNER_SUFFIX, supervised=True)
        yield from _block(block)
    yield _control(ASSISTANT_END, supervised=True)


def _is_answer(block: Block) -> bool:
    return (
        isinstance(block, ToolCalls)
        and len(block.calls) == 1
        and block.calls[0].name == ANSWER_TOOL
    )


def _block(block: Block) -> Iterator[Segment]:
    if isinstance(block, Thoughts | Response):
        yield Segment(block.text, supervised=True)
    elif isinstance(block, ToolOutputs):
        yield Segment("[" + ", ".join(block.outputs) + "]")
    else:
        calls = ", ".join(f'{{"{call.name}": {call.arguments}}}' for call in block.calls)
        yield _control(TOOLS_PREFIX, supervised=True)
        yield Segment(f"[{calls}]", supervised=True)
        yield _control(TOOLS_SUFFIX, supervised=True)


def _encode_run(run: Sequence[Segment], tokenizer: ChatTokenizer) -> Iterator[tuple[int, bool]]:
    """Ids of neighbouring texts, encoded as one text, and whether each is supervised."""
    if not run:
        return
    text = text_of(run)
    kinds = {segment.supervised for segment in run}
    if len(kinds) == 1:
        keep = kinds.pop()
        for token in tokenizer.encode(text):
            yield token, keep
        return
    by_character = [segment.supervised for segment in run for _ in segment.text]
    ids, spans = tokenizer.encode_with_spans(text)
    for token, (start, end) in zip(ids, spans, strict=True):
        yield token, all(by_character[start:end])
