"""Configuration of language identification. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate

SHIPPED_MODEL = "package:languages.ftz"


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """Settings of language identification.

    model           a model written by `language.train`, or the one shipped with stamm
    max_characters  characters read of a document, in six pieces from start to end
    min_letters     with fewer letters the language is "und"
    override_score  score from which the own model decides for a language that CLD2 lacks
    min_score       score below which the own model is ignored
    """

    model: str = SHIPPED_MODEL
    max_characters: int = 3000
    min_letters: int = 12
    override_score: float = 0.9
    min_score: float = 0.4

    def __post_init__(self) -> None:
        validate(
            self,
            ("model", bool(self.model.strip()), "is empty: name a file"),
            (
                "max_characters",
                100 <= self.max_characters <= 1_000_000,
                "must lie in [100, 1000000]",
            ),
            ("min_letters", self.min_letters >= 1, "must be at least 1"),
            ("override_score", 0.0 <= self.override_score <= 1.0, "must lie in [0, 1]"),
            (
                "min_score",
                0.0 <= self.min_score <= self.override_score,
                f"must lie in [0, {self.override_score}]",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class LanguageTrainConfig:
    """Training of the language model on documents with a language tag.

    inputs              files of JSON lines with "text" and "language" (deu_Latn)
    held_out            one document, or line, in this many is held out for evaluation
    min_letters         languages with fewer training letters are left out
    max_letters         most letters of one language that are read
    repeat_to           a language with fewer letters is cut again until it has about this many
    lengths             lengths in letters of the samples a text is cut into, in turn
    min_gram, max_gram  shortest and longest n-grams, in letters
    buckets             rows shared by the n-grams
    dimensions          size of the embedding
    min_word_count      a rarer word is represented by its n-grams only
    epochs              passes over the samples
    """

    inputs: tuple[str, ...]
    held_out: int = 10
    min_letters: int = 2000
    max_letters: int = 300_000
    repeat_to: int = 60_000
    lengths: tuple[int, ...] = (30, 60, 120, 240)
    min_gram: int = 1
    max_gram: int = 4
    buckets: int = 350_000
    dimensions: int = 24
    min_word_count: int = 15
    epochs: int = 6
    learning_rate: float = 0.6
    seed: int = 28

    def __post_init__(self) -> None:
        validate(
            self,
            ("inputs", len(self.inputs) > 0, "is empty: name at least one file"),
            ("held_out", self.held_out >= 2, "must be at least 2"),
            ("min_letters", self.min_letters >= 1, "must be at least 1"),
            ("max_letters", self.max_letters >= self.min_letters, "is below min_letters"),
            ("repeat_to", 0 <= self.repeat_to <= self.max_letters, "must not exceed max_letters"),
            ("lengths", min(self.lengths, default=0) >= 1, "needs lengths of at least 1"),
            ("min_gram", self.min_gram >= 1, "must be at least 1"),
            ("max_gram", self.max_gram >= self.min_gram, "is below min_gram"),
            ("buckets", self.buckets >= 1000, "must be at least 1000"),
            ("dimensions", self.dimensions >= 2 and self.dimensions % 2 == 0, "must be even"),
            ("min_word_count", self.min_word_count >= 1, "must be at least 1"),
            ("epochs", self.epochs >= 1, "must be at least 1"),
            ("learning_rate", 0.0 < self.learning_rate <= 5.0, "must lie in (0, 5]"),
            ("seed", 0 <= self.seed < 2**31, "must lie in [0, 2^31)"),
        )
