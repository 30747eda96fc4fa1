"""The chat format of any template: it is rendered for every conversation, and the loss mask is proved.

The last answer is what the rendered conversation has beyond the rendered prompt before it, up to its first
stop token. A template whose prompt is not the beginning of the whole is refused, and so are texts that it
leaves out, and texts that spell a control token. Thoughts and tools are not supported.

Checked  tests/unit/align/test_template_format.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
        self.stop_ids = frozenset(map(tokenizer.control_id, ends))
        self.sha256 = sha256_value([self.name, 1, template, dict(names), ends, tokenizer_sha256])
        pads = [token for token in (pad_token, *ends) if token in tokenizer.control_tokens()]
        if not ends:
            raise DataError("the tokenizer names no eos_token", fix="Name it in its configuration")
        self.pad_id = tokenizer.control_id(pads[0])
        self._before, self._after = self._around()
        for probe in PROBES:
            if probe.system is None and isinstance(probe.turns[-1], AssistantTurn):
                whole = tokenizer.encode_rendered(self._rendered(probe, prompt=False))
                if self.encode(probe).ids != whole:
                    raise DataError(
                        "the tokenizer encodes an answer differently beside its prompt",
                        fix="Tokenizers that add blanks to a text are not supported",
                    )

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """As ChatFormat.encode; of the answers, the last alone is supervised.

        Raises   DataError for what the template cannot write, and for texts with a control token
        """
        text = self._rendered(conversation, prompt=prompt)
        last = conversation.turns[-1]
        if prompt or not isinstance(last, AssistantTurn):
            ids = self._tokenizer.encode_rendered(text)
            return EncodedChat(ids, [False] * len(ids))
        begun = self._rendered(replace(conversation, turns=conversation.turns[:-1]), prompt=True)
        if not text.startswith(begun):
            raise DataError(
                "the chat template writes an answer otherwise than after its prompt",
                fix="Its loss mask cannot be proved: use a template that continues its prompt",
            )
        head = self._tokenizer.encode_rendered(begun)
        body = self._tokenizer.encode_rendered(text[len(begun) :])
        end = next((place for place, id in enumerate(body) if id in self.stop_ids), None)
        if end is None:
            token = next(filter(None, map(self._tokenizer.control_token, body)), None)
            raise DataError(
                f"the chat template ends an answer with {token or 'no control token'!r}, which does not"
                " end a text",
                fix="Name its id in eos_token_id of generation_config.json",
            )
        trained = [last.supervised and place <= end for place in range(len(body))]
        return EncodedChat(head + body, [False] * len(head) + trained)

    def split(self, conversation: Conversation) -> list[Conversation]:
        """As ChatFormat.split: a conversation for each supervised turn."""
        return one_turn_each(conversation) or [conversation]

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """As ChatFormat.parse."""
        text = self.decode(until_stop(ids, self.stop_ids))
        text = text.removeprefix(self._before).removesuffix(self._after)
        return (Response(text),) if text else ()

    def decode(self, ids: Sequence[int]) -> str:
        """As ChatFormat.decode."""
        return decode_text(ids, self._tokenizer)

    def _around(self) -> tuple[str, str]:
        """The texts that the template writes before and after an answer, within its turn."""
        encoded = self.encode(_ANSWERED)
        body = [id for id, trained in zip(encoded.ids, encoded.supervised, strict=True) if trained]
        before, found, after = self.decode(body).partition("Hi!")
        if not found:
            raise DataError("the chat template changes the text of an answer")
        return before, after

    def _rendered(self, conversation: Conversation, *, prompt: bool) -> str:
        if conversation.tools:
            raise _unsupported("tools")
        messages = list(_messages(conversation))
        case: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": prompt,
            "enable_thinking": conversation.deliberation,
        }
        (rendered,) = render_all(self._template, [case], self._names)
        if rendered.error:
            raise DataError(f"the chat template cannot be rendered: {rendered.error}")
        end = 0
        for message in messages:
            text, anywhere = message["content"].strip(), message["role"] == "system"
            at = rendered.text.find(text, 0 if anywhere else end)
            if at < 0:
                raise _unsupported(f"this {message['role']} message, or changes it")
            end = end if anywhere else at + len(text)
            if text and any(token in text for token in self._tokenizer.control_tokens()):
                raise DataError(f"a {message['role']} message spells a control token of the model")
        return rendered.text


def _messages(conversation: Conversation) -> Iterator[dict[str, str]]:
    if conversation.system is not None:
        yield {"role": "system", "content": conversation.system}
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            yield {"role": "user", "content": turn.text}
            continue
        if not all(isinstance(block, Response) for block in turn.blocks):
            raise _unsupported("thoughts and tool calls")
        text = "".join(block.text for block in turn.blocks if isinstance(block, Response))
        yield {"role": "assistant", "content": text}


def _unsupported(what: str) -> DataError:
    return DataError(f"the chat template of this model does not write {what}")
