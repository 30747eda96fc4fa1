"""Chat formats: how conversations of one model become token ids, and ids become blocks again.

`stamm.models.hf_chat_format.load_chat_format` gives the format of a tokenizer's folder. Page: docs/chat_format.md
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Protocol

from stamm.base.files import sha256_value
from stamm.chat.conversation import Block, Conversation
from stamm.chat.parse import parse_assistant, segments_of_ids
from stamm.chat.render import ASSISTANT_END, ChatTokenizer, EncodedChat, encode_conversation

TEMPLATE = "template.jinja"
_END, _PAD = "</s>", "<pad>"


class ChatFormat(Protocol):
    """Protocol of a chat format: encodes conversations of one model, and reads its answers.

    name       "apertus", "chatml", "llama3", or "template" for any other
    sha256     of all that decides the ids: name, template and tokenizer
    pad_id     fills the end of shorter sequences
    stop_ids   tokens that end an assistant's turn
    """

    name: str
    sha256: str
    pad_id: int
    stop_ids: frozenset[int]

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """Token ids of a conversation, and a mask of those that the model is trained to produce.

        prompt   end where the assistant begins to write. The ids of a prompt are the beginning of
                 the ids of the conversation with the answer.

        Raises   DataError for a conversation that the format cannot write.
        """

    def split(self, conversation: Conversation) -> list[Conversation]:
        """The conversations to train on in place of one: [it], or one for each supervised turn.

        In each, the ids before every supervised turn are those of the prompt at that point, which
        sampling and the chat template write. The turns of one that is split are context but for
        the last.
        """

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """The blocks of a completion, up to its first stop token. Malformed text stays text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids without control tokens."""


class ApertusFormat:
    """The format of Apertus: `stamm.chat.render` and `stamm.chat.parse`.

    Checked  tests/unit/chat/test_formats.py
    """

    name = "apertus"

    def __init__(self, tokenizer: ChatTokenizer, tokenizer_sha256: str) -> None:
        self._tokenizer = tokenizer
        template = chat_template()
        self.sha256 = sha256_value([self.name, template, tokenizer_sha256])
        self.pad_id = tokenizer.control_id(_PAD)
        self.stop_ids = frozenset({tokenizer.control_id(ASSISTANT_END), tokenizer.control_id(_END)})

    def encode(self, conversation: Conversation, *, prompt: bool = False) -> EncodedChat:
        """As ChatFormat.encode."""
        return encode_conversation(conversation, self._tokenizer, prompt=prompt)

    def split(self, conversation: Conversation) -> list[Conversation]:
        """As ChatFormat.split: a turn is written alike wherever it is, between control tokens."""
        return [conversation]

    def parse(self, ids: Sequence[int]) -> tuple[Block, ...]:
        """As ChatFormat.parse."""
        return parse_assistant(segments_of_ids(until_stop(ids, self.stop_ids), self._tokenizer))

    def decode(self, ids: Sequence[int]) -> str:
        """As ChatFormat.decode."""
        return decode_text(ids, self._tokenizer)


def chat_template() -> str:
    """The Jinja template of the Apertus format, as it is exported."""
    return files("stamm.chat").joinpath(TEMPLATE).read_text(encoding="utf-8")


def until_stop(ids: Sequence[int], stop_ids: frozenset[int]) -> list[int]:
    """The ids before the first stop token."""
    end = next((index for index, token_id in enumerate(ids) if token_id in stop_ids), len(ids))
    return list(ids[:end])


def decode_text(ids: Sequence[int], tokenizer: ChatTokenizer) -> str:
    """The text of ids, control tokens left out."""
    return tokenizer.decode(
        [token_id for token_id in ids if tokenizer.control_token(token_id) is None]
    )
