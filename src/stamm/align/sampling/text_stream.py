"""Text of a growing sequence of tokens, without half characters and with control characters escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

BROKEN = "\ufffd"
_WINDOW = 16  # tokens that are decoded again with each new one
_KEPT = "\n\t\u200c\u200d"  # joiners are parts of words and of emoji


class TextStream:
    """The text that each new token adds.

    Bytes of a character that is not complete decode to U+FFFD; that is held back until the character
    is complete, or until `flush`.

    decode   text of token ids

    Checked  tests/unit/align/test_chat_session.py
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0  # characters of the text of `_ids`

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        self._ids.append(token)
        text = self._decode(self._ids)
        whole = text.removesuffix(BROKEN)
        new = whole[self._shown :]
        self._shown = max(self._shown, len(whole))
        if len(self._ids) > _WINDOW and whole == text:
            # the last token stays: some tokenizers write blanks between two tokens
            del self._ids[:-1]
            self._shown = len(self._decode(self._ids))
        return new

    def flush(self) -> str:
        """The rest, broken characters as U+FFFD."""
        rest = self._decode(self._ids)[self._shown :]
        self._ids, self._shown = [], 0
        return rest


def escaped(text: str) -> str:
    """`text` with control and format characters as escapes; line breaks and tabs stay.

    An escape sequence in a model's answer must not reach a terminal, nor a character that turns the
    direction of what follows.
    """
    return "".join(
        c
        if c.isprintable() or c in _KEPT or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode()
        for c in text
    )
