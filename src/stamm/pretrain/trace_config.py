"""Configuration of a trace. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stamm.base.bounds import AtLeastOne, Natural
from stamm.base.config import Bounded
from stamm.base.errors import ConfigError, DataError
from stamm.base.units import bytes_text

LARGEST_PASSAGE = 2**20
"""Bytes of a file with a passage."""


@dataclass(frozen=True, kw_only=True)
class TraceConfig(Bounded):
    """Subject of a trace: one of step, document, tokens and passage.

    step      a step of training, from 1: which documents it read
    document  a document_id, a URL in any spelling, a domain or https://host/*: which steps read it
    tokens    START-STOP, positions in the training stream: which documents they are of, and which steps read them
    passage   a text, or @FILE: which documents have runs of its tokens
    shortest  tokens of such a run, at least
    new_tokens   of the model's greedy continuation of the passage, in which runs are looked for as well
    forgotten    of the passage: runs of pretrain.forget, under whose models its loss is computed
    text      with the text of the documents, where the run still has its corpus
    loss      with the loss of the documents, and of the passage, under the trained model
    limit     documents that are returned
    """

    step: AtLeastOne | None = None
    document: str = ""
    tokens: str = ""
    passage: str = ""
    shortest: AtLeastOne = 8
    new_tokens: Natural = 0
    forgotten: tuple[str, ...] = ()
    text: bool = False
    loss: bool = False
    limit: AtLeastOne = 20

    def check(self) -> None:
        """Raise ConfigError unless one thing is asked for."""
        named = [bool(self.document), bool(self.tokens), bool(self.passage)]
        if sum([self.step is not None, *named]) != 1:
            raise ConfigError(
                "step, document, tokens and passage: one of them must be given",
                fix="Such as step=120, document=https://example.org/page, tokens=1000-1999 or passage=@FILE",
            )
        if (self.new_tokens or self.forgotten) and not self.passage:
            name = "new_tokens" if self.new_tokens else "forgotten"
            raise ConfigError(f"{name} is set, and is of a passage", fix="Set passage=TEXT, too")

    def span(self) -> tuple[int, int]:
        """The first token of `tokens`, and the one after the last.

        Raises   ConfigError for another form
        """
        start, _, stop = self.tokens.partition("-")
        numbers = [text for text in (start, stop or start) if text.isdecimal() and len(text) < 19]
        is_span = len(numbers) == 2 and int(numbers[0]) <= int(numbers[1])
        if not is_span:
            raise ConfigError(
                f"tokens={self.tokens[:40]!r} is not START-STOP", fix="Such as 1000-1999"
            )
        return int(numbers[0]), int(numbers[1]) + 1

    def passage_text(self) -> str:
        """The passage; `passage` itself, or the text of the file that it names.

        Raises   DataError for a file that is not there, is not UTF-8, or is over 1 MiB; ConfigError for
                 a text of blanks, or one that is not Unicode
        """
        text = self.passage
        if text.startswith("@"):
            path = Path(text.removeprefix("@"))
            try:
                with path.open("rb") as opened:
                    data = opened.read(LARGEST_PASSAGE + 1)
                text = data.decode("utf-8-sig")
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from None
            except UnicodeDecodeError as error:
                if len(data) <= LARGEST_PASSAGE:
                    raise DataError(
                        f"{path} is not UTF-8: {error.reason} at byte {error.start}"
                    ) from None
            if len(data) > LARGEST_PASSAGE:
                raise DataError(
                    f"{path} is over {bytes_text(LARGEST_PASSAGE)}", fix="Name a passage of it"
                )
        if not text.strip():
            raise ConfigError("the passage is empty", where=self.passage[:80])
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise ConfigError("the passage is not UTF-8", fix="Write it into a file: passage=@FILE")
        return text
