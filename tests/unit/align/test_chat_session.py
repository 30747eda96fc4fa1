"""A conversation in the terminal: streamed text, history, interrupts, a full context."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stamm.align.sampling.chat_session import ChatSession, TextStream, escaped
from stamm.align.sampling.config import ChatConfig
from stamm.base.errors import ConfigError
from stamm.chat.conversation import Conversation, UserTurn
from stamm.models.loading import OpenModel, open_model
from stamm.models.streaming import StreamingGenerator
from tests.unit.chat.conversations import ALPHABET, TOKENIZER
from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    return open_model(root, chat=True)


class Terminal:
    """Collects what a session writes; gives lines until the end of input."""

    def __init__(self, *lines: str, interrupt_after: int = -1) -> None:
        self.lines, self.pieces, self.notes = list(lines), list[str](), list[str]()
        self._left = interrupt_after

    def read(self) -> str:
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if line == "^C":
            raise KeyboardInterrupt
        return line

    def write(self, piece: str) -> None:
        self.pieces.append(piece)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def talk(model: OpenModel, terminal: Terminal, **options: object) -> ChatSession:
    config = ChatConfig(**{"temperature": 0.0, "max_new_tokens": 10, **options})  # type: ignore[arg-type]
    session = ChatSession(model, config, terminal.write, terminal.notes.append)
    session.run(terminal.read)
    return session


def test_the_answer_is_the_sampled_one_escaped(model: OpenModel) -> None:
    terminal = Terminal("Hello")
    talk(model, terminal, system="Be brief.", temperature=0.8, seed=5)
    asked = Conversation(turns=(UserTurn("Hello"),), system="Be brief.")
    ids = model.chat.encode(asked, prompt=True).ids
    config = ChatConfig(temperature=0.8, max_new_tokens=10, seed=5).sampling()
    found = list(StreamingGenerator(model.decoder).generate(ids, config, model.chat.stop_ids))
    assert terminal.text == escaped(model.tokenizer.decode(found)) + "\n"
    assert terminal.notes == ["[stopped: max_new_tokens=10]"]


def test_a_conversation_goes_on_until_it_is_reset(model: OpenModel) -> None:
    terminal = Terminal("One", "Two", "/reset", "One", "/quit", "Three")
    session = talk(model, terminal)
    answers = terminal.text.split("\n")
    assert terminal.text.startswith(answers[0])
    assert "A new conversation." in terminal.notes
    assert terminal.lines == ["Three"]
    turns = session._turns
    assert [turn.text for turn in turns if isinstance(turn, UserTurn)] == ["One"]
    alone = Terminal("One")
    talk(model, alone)
    assert terminal.text.startswith(alone.text)
    assert terminal.text.endswith(alone.text)
    assert len(terminal.text) > 2 * len(alone.text)


def test_ctrl_c_stops_an_answer_and_keeps_what_was_written(model: OpenModel) -> None:
    terminal = Terminal("One", "Two", interrupt_after=4)
    session = talk(model, terminal)
    assert terminal.notes[0] == "\n[stopped]"
    assert terminal.notes[1:] == ["[stopped: max_new_tokens=10]"]
    assert [turn.text for turn in session._turns if isinstance(turn, UserTurn)] == ["One", "Two"]


def test_ctrl_c_at_the_prompt_and_unknown_commands_explain(model: OpenModel) -> None:
    terminal = Terminal("^C", "/Quit", "", "  ", "/quit")
    talk(model, terminal)
    assert [("/reset" in note) for note in terminal.notes] == [True, True]
    assert "unknown command /Quit." in terminal.notes[1]
    assert terminal.text == ""


def test_a_full_context_is_said_in_one_line(model: OpenModel) -> None:
    terminal = Terminal("word " * 200, "Hello", "/quit")
    session = talk(model, terminal, max_new_tokens=500)
    tokens, full = terminal.notes
    assert tokens.startswith("The conversation has ")
    assert "the model's context is 160: /reset begins a new one." in tokens
    assert "the context of 160 tokens is full" in full
    assert [turn.text for turn in session._turns if isinstance(turn, UserTurn)] == ["Hello"]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="top_p"):
        ChatConfig(top_p=0)


@settings(max_examples=60, deadline=None)
@given(st.text(ALPHABET, max_size=60))
def test_no_character_is_shown_in_halves(text: str) -> None:
    stream = TextStream(TOKENIZER.decode)
    text = text.replace("\ufffd", "")
    pieces = [stream.push(token) for token in TOKENIZER.encode(text)]
    assert "".join(pieces) == text
    assert stream.flush() == ""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(73, TOKENIZER.size - 1), max_size=60))
def test_broken_bytes_are_shown_as_they_decode(ids: list[int]) -> None:
    stream = TextStream(TOKENIZER.decode)
    assert "".join(map(stream.push, ids)) + stream.flush() == TOKENIZER.decode(ids)


def test_a_decoder_that_writes_blanks_between_tokens() -> None:
    """As word-level tokenizers do: the first token of a text has none before it."""
    decode: Callable[..., str] = lambda ids: " ".join(f"w{each}" for each in ids)  # noqa: E731
    stream = TextStream(decode)
    assert "".join(map(stream.push, range(50))) == decode(range(50))


def test_control_characters_are_escaped() -> None:
    assert escaped("a\x1b[2Jb\r\u202e\x00") == "a\\x1b[2Jb\\r\\u202e\\x00"
    kept = "Grüezi\n\tà\u00a0la 👩\u200d🔬 क्\u200dष ❤\ufe0f"
    assert escaped(kept) == kept


def test_a_text_that_is_not_unicode_is_refused(model: OpenModel) -> None:
    terminal = Terminal("Hello \udcff")
    talk(model, terminal)
    assert "lone surrogate" in terminal.notes[0]
