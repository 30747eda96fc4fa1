"""Configuration of a trace. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.bounds import AtLeastOne
from stamm.base.config import Bounded
from stamm.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TraceConfig(Bounded):
    """Subject of a trace: one of step, document and tokens.

    step      a step of training, from 1: which documents it read
    document  a document_id, a URL in any spelling, a domain or https://host/*: which steps read it
    tokens    START-STOP, positions in the training stream: which documents they are of, and which steps read them
    text      with the text of the documents, where the run still has its corpus
    loss      with the loss of the documents under the trained model
    limit     documents that are returned
    """

    step: AtLeastOne | None = None
    document: str = ""
    tokens: str = ""
    text: bool = False
    loss: bool = False
    limit: AtLeastOne = 20

    def check(self) -> None:
        """Raise ConfigError unless one thing is asked for."""
        given = [self.step is not None, bool(self.document), bool(self.tokens)]
        if sum(given) != 1:
            raise ConfigError(
                "step, document and tokens: one of them must be given",
                fix="Such as step=120, document=https://example.org/page or tokens=1000-1999",
            )

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
