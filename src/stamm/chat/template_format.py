"""The chat format of any template: it is rendered for every conversation, and the loss mask is proved.

The last answer is what the rendered conversation has beyond the rendered prompt before it, up to its first
stop token. A template whose prompt is not the beginning of the whole is refused, and so are texts that spell
a control token, and messages that it leaves out or changes: each is rendered with a mark, too, and its text
follows its mark. Thoughts and tools are not supported.

Checked  tests/unit/align/test_template_format.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.chat.conversation import (
    AssistantTurn,
    Block,
    Conversation,
    Response,
    UserTurn,
    one_turn_each,
)
from stamm.chat.formats import decode_text, until_stop
from stamm.chat.render import ChatTokenizer, EncodedChat
from stamm.chat.template_sandbox import render_all
from stamm.chat.template_traits import PROBES

_FIRST_MARK = 0xF0000  # characters for private use
_ANSWERED = Conversation(turns=(UserTurn("Hello"), AssistantTurn((Response("Hi!"),))))


class TemplateTokenizer(ChatTokenizer, Protocol):
    """Tokenizer methods that a template needs."""

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of a text whose control tokens are spelled out."""

    def control_tokens(self) -> Collection[str]:
        """The texts of all control tokens."""


class TemplateFormat:
    """The chat format of a template.

    names        variables of the template besides the messages: bos_token and others
    end_tokens   control tokens that end an answer
    pad_token    the tokenizer's; "" when it names none

    Raises   DataError when the template cannot be rendered, an answer does not continue its prompt or
             ends with none of `end_tokens`, or the tokenizer encodes prompt and answer otherwise apart
    """

    name = "template"

    def __init__(
        self,
        tokenizer: TemplateTokenizer,
        *,
        tokenizer_sha256: str,
        template: str,
        names: Mapping[str, str],
        end_tokens: Sequence[str],
        pad_token: str,
    ) -> None:
        self._tokenizer, self._template, self._names = tokenizer, template, names
        ends = [token for token in end_tokens if token in tokenizer.control_tokens()]
        self._ends, self.stop_ids = ends, frozenset(map(tokenizer.control_id, ends))
        self.sha256 = sha256_value([self.name, 1, template, dict(names), ends, tokenizer_sha256])
        pads = [token for token in (pad_token, *ends) if token in tokenizer.control_tokens()]
        if not ends:
            raise DataError("the tokenizer names no eos_token", fix="Name it in its configuration")
        self.pad_id = tokenizer.control_id(pads[0])
        self._before = self._after = ""
        self._before, answer, self._after = self._answer(_ANSWERED)[2].partition("Hi!")
        if not answer:
            raise DataError("the chat template changes the text of an answer")
        for probe in PROBES:
            if probe.system is None and isinstance(probe.turns[-1], AssistantTurn):
                whole = tokenizer.encode_rendered(self._rendered(probe, prompt=False))
                if self.encode(probe).ids != whole:
                    raise DataError("the tokenizer encodes an answer differently beside its prompt")

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """As ChatFormat.encode; of the answers, the last alone is supervised.

        Raises   DataError for what the template cannot write, and for texts with a control token
        """
        last = conversation.turns[-1]
        encoded = self._tokenizer.encode_rendered
        if prompt or not isinstance(last, AssistantTurn):
            ids = encoded(self._rendered(conversation, prompt=prompt))
            return EncodedChat(ids, [False] * len(ids))
        begun, text, answer = self._answer(conversation)
        if self._inner(answer).strip() != _text(last).strip():
            raise _unsupported("this assistant message, or changes it")
        head, whole = encoded(begun), encoded(text)
        body = whole[len(head) :]
        if whole[: len(head)] != head:  # a token has characters of both
            body = encoded(text[len(begun) :])
            if self._tokenizer.decode(head + body) != self._tokenizer.decode(whole):
                raise DataError("the tokenizer joins the beginning of this answer with its prompt")
        end = next(place for place, id in enumerate(body) if id in self.stop_ids)
        trained = [last.supervised and place <= end for place in range(len(body))]
        return EncodedChat(head + body, [False] * len(head) + trained)

    def split(self, conversation: Conversation) -> list[Conversation]:
        """As ChatFormat.split: a conversation for each supervised turn."""
        return one_turn_each(conversation) or [conversation]

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """As ChatFormat.parse."""
        text = self.decode(until_stop(ids, self.stop_ids))
        text = self._inner(text)
        return (Response(text),) if text else ()

    def decode(self, ids: Sequence[int]) -> str:
        """As ChatFormat.decode."""
        return decode_text(ids, self._tokenizer)

    def _answer(self, conversation: Conversation) -> tuple[str, str, str]:
        """The rendered prompt, the whole, and of the whole the last answer: up to its stop token."""
        text = self._rendered(conversation, prompt=False)
        begun = self._rendered(replace(conversation, turns=conversation.turns[:-1]), prompt=True)
        if not text.startswith(begun):
            raise DataError(
                "the chat template writes an answer otherwise than after its prompt",
                fix="Its loss mask cannot be proved: use a template that continues its prompt",
            )
        body = text[len(begun) :]
        ends = [body.find(token) for token in self._ends if token in body]
        if not ends:
            tokens = [token for token in self._tokenizer.control_tokens() if token in body]
            token = min(tokens, key=body.find, default="no control token")
            raise DataError(
                f"the chat template ends an answer with {token!r}, which does not end a text",
                fix="Name its id in eos_token_id of generation_config.json",
            )
        return begun, text, body[: min(ends)]

    def _inner(self, answer: str) -> str:
        """An answer without the texts that the template writes around it, within its turn."""
        return answer.removeprefix(self._before).removesuffix(self._after)

    def _rendered(self, conversation: Conversation, *, prompt: bool) -> str:
        if conversation.tools:
            raise _unsupported("tools")
        messages = list(_messages(conversation))
        cases: list[dict[str, Any]] = [
            {
                "messages": written,
                "add_generation_prompt": prompt,
                "enable_thinking": conversation.deliberation,
            }
            for written in (messages, list(map(_marked, messages, count(_FIRST_MARK))))
        ]
        rendered, marked = render_all(self._template, cases, self._names)
        if error := rendered.error or marked.error:
            raise DataError(f"the chat template cannot be rendered: {error}")
        rest, end = marked.text, -1
        for number, message in enumerate(messages, _FIRST_MARK):
            text, mark = message["content"].strip(), chr(number)
            if not text:
                continue
            at = marked.text.find(mark + text)
            in_order = at > end or message["role"] == "system"
            if at < 0 or marked.text.count(mark) > 1 or not in_order:
                raise _unsupported(f"this {message['role']} message, or changes it")
            end = max(end, at) if message["role"] != "system" else end
            rest = rest.replace(mark, "")
            if any(token in text for token in self._tokenizer.control_tokens()):
                raise DataError(f"a {message['role']} message spells a control token of the model")
        if rest != rendered.text:
            raise DataError("the chat template writes a message by how its text begins")
        return rendered.text


def _marked(message: Mapping[str, str], mark: int) -> dict[str, str]:
    """A message whose text begins with a mark, by which it is found in what a template writes."""
    content = message["content"]
    blanks = len(content) - len(content.lstrip())
    begins = content[:blanks] + (chr(mark) if content.strip() else "")
    return {**message, "content": begins + content[blanks:]}


def _messages(conversation: Conversation) -> Iterator[dict[str, str]]:
    if conversation.system is not None:
        yield {"role": "system", "content": conversation.system}
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            yield {"role": "user", "content": turn.text}
            continue
        if not all(isinstance(block, Response) for block in turn.blocks):
            raise _unsupported("thoughts and tool calls")
        yield {"role": "assistant", "content": _text(turn)}


def _text(turn: AssistantTurn) -> str:
    return "".join(block.text for block in turn.blocks if isinstance(block, Response))


def _unsupported(what: str) -> DataError:
    return DataError(f"the chat template of this model does not write {what}")
