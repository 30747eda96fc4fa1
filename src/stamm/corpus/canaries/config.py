"""Which canaries are planted, how many, how often. Light: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from stamm.base.config import validate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig

Kind = Literal[
    "random_characters",
    "random_words",
    "secret",
    "rewrapped",
    "indented",
    "prefixed",
    "prefixed_words",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PROBES = "probes.json"
PROBES_SCHEMA = 1
PROBES_SHARD = "00000"


@dataclass(frozen=True, kw_only=True)
class CanariesConfig:
    """Canaries planted in the training stream, by kind and number of repeats.

    kinds         random_characters, random_words, secret: the same text each time.
                  rewrapped, indented, prefixed: a passage of the probes' books, each time laid out
                  in another way or behind another beginning. prefixed_words: random words so
    per_bucket    canaries of each kind for each repeat count
    repeats       how often the text of a canary occurs in the stream (0: never, the control)
    words         words in a text of random words; a text of random characters or a secret is about
                  as long
    prefix_words  random words before each copy of what is prefixed
    """

    kinds: tuple[Kind, ...] = KINDS
    per_bucket: int = 4
    repeats: tuple[int, ...] = (0, 1, 4, 16, 32)
    words: int = 160
    prefix_words: int = 20

    def __post_init__(self) -> None:
        validate(
            self,
            ("kinds", len(self.kinds) > 0, "is empty: name at least one kind"),
            ("kinds", len(set(self.kinds)) == len(self.kinds), "names a kind twice"),
            ("per_bucket", 1 <= self.per_bucket <= 10_000, "must lie in 1 to 10000"),
            ("repeats", len(self.repeats) > 0, "is empty: name at least one repeat count"),
            ("repeats", min(self.repeats, default=0) >= 0, "must not be negative"),
            ("repeats", max(self.repeats, default=0) <= 100_000, "must not exceed 100000"),
            ("repeats", len(set(self.repeats)) == len(self.repeats), "names a count twice"),
            ("words", 8 <= self.words <= 100_000, "must lie in 8 to 100000"),
            ("prefix_words", 4 <= self.prefix_words <= 1000, "must lie in 4 to 1000"),
        )


@dataclass(frozen=True, kw_only=True)
class ProbesConfig:
    """Passages planted to measure memorization later: how many, and how often each is repeated.

    books                a JSONL of public-domain texts ("package:probe_books.jsonl.zst")
    passages_per_bucket  distinct passages for each repeat count
    repeats              how often a passage of each bucket occurs in the training stream
                         (0: never, the control)
    shortest, longest    bounds of a passage, in characters
    """

    books: str
    passages_per_bucket: int = 8
    repeats: tuple[int, ...] = (0, 1, 4, 16, 32)
    shortest: int = 900
    longest: int = 1200

    def __post_init__(self) -> None:
        validate(
            self,
            ("passages_per_bucket", self.passages_per_bucket >= 1, "must be at least 1"),
            ("repeats", len(self.repeats) > 0, "is empty: name at least one repeat count"),
            ("repeats", min(self.repeats, default=0) >= 0, "must not be negative"),
            ("repeats", len(set(self.repeats)) == len(self.repeats), "names a count twice"),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
            ("longest", self.longest > self.shortest, f"must exceed shortest = {self.shortest}"),
        )


@dataclass(frozen=True, kw_only=True)
class InjectionConfig:
    """Probes and canaries injected into the corpus. They are cleaned like every other document."""

    probes: ProbesConfig
    canaries: CanariesConfig | None = None
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    seed: int = 28
