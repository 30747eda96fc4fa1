"""A conversation with a model in the terminal: reads lines, streams answers.

Checked  tests/unit/align/test_chat_session.py, tests/cli/test_chat_command.py
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from stamm.align.sampling.config import ChatConfig
from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Conversation, UserTurn
from stamm.models.loading import OpenModel
from stamm.models.streaming import StreamingGenerator

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


RESET, QUIT = "/reset", "/quit"
HELP = f"{RESET} begins a new conversation, {QUIT} or Ctrl-D ends; Ctrl-C stops an answer."


class ChatSession:
    """A conversation, and the model that answers.

    write   receives the answer's text, piece by piece, escaped for a terminal
    note    receives remarks of one line each, which are not part of the answer

    Raises   DataError when the model's chat format has no system message and one is configured.
    """

    def __init__(
        self,
        model: OpenModel,
        config: ChatConfig,
        write: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._model, self._config, self._write, self._note = model, config, write, note
        self._generator = StreamingGenerator(model.decoder)
        self._turns: list[UserTurn | AssistantTurn] = []
        self._answers = 0
        model.chat.encode(self._conversation("Hello"), prompt=True)

    def run(self, read: Callable[[], str]) -> None:
        """Answer lines until the end of input or /quit.

        read   the next line; raises EOFError at the end of input, KeyboardInterrupt at Ctrl-C
        """
        while True:
            try:
                line = read().strip()
                if line == QUIT:
                    return
                if line == RESET:
                    self._turns = []
                    self._note("A new conversation.")
                elif line.startswith("/") and line[1:].isalpha():
                    self._note(f"unknown command {escaped(line)}. {HELP}")
                elif line:
                    self.answer(line)
            except EOFError:
                return
            except KeyboardInterrupt:
                self._note(f"\n{HELP}")

    def answer(self, text: str) -> None:
        """Stream the answer to a message of the user; both are added to the conversation.

        Edge   Ctrl-C stops the answer, and what was written so far is kept. A message that leaves no
               room in the model's context is not added
        """
        try:
            prompt = self._model.chat.encode(self._conversation(text), prompt=True).ids
        except DataError as error:
            self._note(error.line())
            return
        limit = self._generator.max_context
        if len(prompt) >= limit:
            self._note(
                f"The conversation has {len(prompt)} tokens, and the model's context is {limit}: "
                f"{RESET} begins a new one."
            )
            return
        ids: list[int] = []
        try:
            self._stream(prompt, ids)
        except KeyboardInterrupt:
            self._note("\n[stopped]")
        else:
            self._write("\n")
            if len(prompt) + len(ids) >= limit:
                self._note(
                    f"[stopped: the context of {limit} tokens is full: {RESET} begins a new one]"
                )
            elif ids[-1] not in self._model.chat.stop_ids:
                self._note(f"[stopped: max_new_tokens={self._config.max_new_tokens}]")
        answer = AssistantTurn(self._model.chat.parse(ids))
        self._turns += [UserTurn(text), answer]

    def _conversation(self, text: str) -> Conversation:
        """The conversation so far, and a message of the user."""
        return Conversation(
            turns=(*self._turns, UserTurn(text)),
            system=self._config.system or None,
            deliberation=self._config.deliberation,
        )

    def _stream(self, prompt: list[int], ids: list[int]) -> None:
        """Write the answer to `prompt`; its tokens are added to `ids`."""
        chat, tokenizer = self._model.chat, self._model.tokenizer
        text = TextStream(tokenizer.decode)
        self._answers += 1
        tokens = self._generator.generate(
            prompt, self._config.sampling(), chat.stop_ids, self._answers - 1
        )
        for token in tokens:
            ids.append(token)
            control = tokenizer.control_token(token)
            if control is None:
                self._write(escaped(text.push(token)))
            elif token not in chat.stop_ids:  # marks of thoughts and tool calls are shown
                self._write(escaped(text.flush() + control))
        self._write(escaped(text.flush()))
