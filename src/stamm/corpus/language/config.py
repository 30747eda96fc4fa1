"""Configuration of language identification. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Natural, Share, at_least, not_empty, within
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

    model: Annotated[str, not_empty("name a file")] = SHIPPED_MODEL
    max_characters: Annotated[int, within("[100, 1000000]")] = 3000
    min_letters: AtLeastOne = 12
    override_score: Share = 0.9
    min_score: Share = 0.4

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "min_score",
                self.min_score <= self.override_score,
                f"exceeds override_score = {self.override_score}",
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

    inputs: Annotated[tuple[str, ...], not_empty("name at least one file")]
    held_out: Annotated[int, at_least(2)] = 10
    min_letters: AtLeastOne = 2000
    max_letters: AtLeastOne = 300_000
    repeat_to: Natural = 60_000
    lengths: Annotated[tuple[AtLeastOne, ...], not_empty()] = (30, 60, 120, 240)
    min_gram: AtLeastOne = 1
    max_gram: AtLeastOne = 4
    buckets: Annotated[int, at_least(1000)] = 350_000
    dimensions: Annotated[int, at_least(2)] = 24
    min_word_count: AtLeastOne = 15
    epochs: AtLeastOne = 6
    learning_rate: Annotated[float, within("(0, 5]")] = 0.6
    seed: Annotated[int, within("[0, 2^31)")] = 28

    def __post_init__(self) -> None:
        validate(
            self,
            ("max_letters", self.max_letters >= self.min_letters, "is below min_letters"),
            ("repeat_to", self.repeat_to <= self.max_letters, "must not exceed max_letters"),
            ("max_gram", self.max_gram >= self.min_gram, "is below min_gram"),
            ("dimensions", self.dimensions % 2 == 0, "must be even"),
        )
