"""Configuration of language identification. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate

SHIPPED_MODEL = "package:languages.ftz"


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """Settings of language identification.

    model         a model written by `language.train`, or the one shipped with stamm
    most_read     characters read of a document, in six pieces from start to end
    fewest_letters  with fewer letters the language is "und"
    surest        score from which the own model decides for a language that CLD2 lacks
    least         score below which the own model is ignored
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
    """Training of the language model on documents with a language tag.

    inputs           files of JSON lines with "text" and "language" (deu_Latn)
    held_out         one document, or line, in this many is held out for evaluation
    fewest_letters   languages with fewer training letters are left out
    most_letters     most letters of one language that are read
    repeat_to        a language with fewer letters is cut again until it has about this many
    lengths          lengths in letters of the samples a text is cut into, in turn
    shortest, longest_gram  n-gram lengths in letters
    buckets          rows shared by the n-grams
    dimensions       size of the embedding
    rarest_word      a rarer word is represented by its n-grams only
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
