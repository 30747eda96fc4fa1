"""What language identification can be told. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate

SHIPPED_MODEL = "package:languages.ftz"


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """How a text's language is told.

    model         a model written by `language.train`, or the one shipped with stamm
    most_read     characters read of a document, in six pieces from its start to its end
    fewest_letters  letters below which no answer is given
    surest        score from which the own model's word is taken for a language CLD2 cannot name
    least         score below which the own model's word is not taken at all
    """

    model: str = SHIPPED_MODEL
    most_read: int = 3000
    fewest_letters: int = 12
    surest: float = 0.9
    least: float = 0.4

    def __post_init__(self) -> None:
        validate(
            self,
            ("model", bool(self.model.strip()), "is empty: name a file"),
            ("most_read", 100 <= self.most_read <= 1_000_000, "must lie in [100, 1000000]"),
            ("fewest_letters", self.fewest_letters >= 1, "must be at least 1"),
            ("surest", 0.0 <= self.surest <= 1.0, "must lie in [0, 1]"),
            ("least", 0.0 <= self.least <= self.surest, f"must lie in [0, {self.surest}]"),
        )


@dataclass(frozen=True, kw_only=True)
class LanguageTrainConfig:
    """A model of languages trained on documents that name theirs.

    inputs           files of JSON lines with "text" and "language" (deu_Latn)
    held_out         one document, or line, in this many is kept to measure on
    fewest_letters   languages with fewer letters to train on are left out
    most_letters     letters of one language that are read at most
    repeat_to        a language with fewer letters is cut anew until it has about this many
    lengths          letters of the samples a text is cut into, in turn
    shortest, longest_gram  letters of the pieces of words that are counted
    buckets          rows that pieces of words share
    dimensions       numbers in a row
    rarest_word      a word seen less often is known by its pieces only
    epochs           passes over the samples
    """

    inputs: tuple[str, ...]
    held_out: int = 10
    fewest_letters: int = 2000
    most_letters: int = 300_000
    repeat_to: int = 60_000
    lengths: tuple[int, ...] = (30, 60, 120, 240)
    shortest_gram: int = 1
    longest_gram: int = 4
    buckets: int = 350_000
    dimensions: int = 24
    rarest_word: int = 15
    epochs: int = 6
    learning_rate: float = 0.6
    seed: int = 28

    def __post_init__(self) -> None:
        validate(
            self,
            ("inputs", len(self.inputs) > 0, "is empty: name at least one file"),
            ("held_out", self.held_out >= 2, "must be at least 2"),
            ("fewest_letters", self.fewest_letters >= 1, "must be at least 1"),
            ("most_letters", self.most_letters >= self.fewest_letters, "is below fewest_letters"),
            ("repeat_to", 0 <= self.repeat_to <= self.most_letters, "must not exceed most_letters"),
            ("lengths", min(self.lengths, default=0) >= 1, "needs lengths of at least 1"),
            ("shortest_gram", self.shortest_gram >= 1, "must be at least 1"),
            ("longest_gram", self.longest_gram >= self.shortest_gram, "is below shortest_gram"),
            ("buckets", self.buckets >= 1000, "must be at least 1000"),
            ("dimensions", self.dimensions >= 2 and self.dimensions % 2 == 0, "must be even"),
            ("rarest_word", self.rarest_word >= 1, "must be at least 1"),
            ("epochs", self.epochs >= 1, "must be at least 1"),
            ("learning_rate", 0.0 < self.learning_rate <= 5.0, "must lie in (0, 5]"),
            ("seed", 0 <= self.seed < 2**31, "must lie in [0, 2^31)"),
        )
