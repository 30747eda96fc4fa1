"""Configuration of decontamination: evaluation sets, and when a text counts as found. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Natural, PositiveShare, distinct, not_empty, within
from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """One evaluation set, as JSON lines.

    name     of the set in the ledger
    file     .jsonl, plain, .gz or .zst
    fields   keys of the texts to look for, each by itself
    id       key of an item's name, a string or a number; empty: the line number
    """

    name: str
    file: Annotated[str, not_empty("name a file")]
    fields: Annotated[
        tuple[str, ...], not_empty("name at least one key"), distinct("names a key twice")
    ] = ("text",)
    id: str = "id"

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "name",
                0 < len(self.name) <= 100 and self.name.isprintable(),
                "must have 1 to 100 printable characters",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ContaminationConfig:
    """Decontamination: when a document counts as containing an evaluation text.

    A text of `gram_words` words or more is found where an n-gram of that length agrees and at least
    `share` of its words occur there in runs of `block_words` or more. A shorter one is found where
    it occurs as a whole: as a sentence, a line, between quotes.

    Letters are counted too, because in scripts without blanks each character is a word: 8 letters
    of Thai occur by chance. A wide one (Han, kana, Hangul) counts as three.

    8-grams, as in the decontamination of Apertus' posttraining data, find a question with a changed
    word three to four times as often as 13-grams; the required overlap excludes chance.

    part_letters      letters that a partial match must have
    shortest_words    texts with fewer words are not looked for; the index counts them
    shortest_letters  texts with fewer letters are not looked for: any book has them by chance
    most_hits         most items reported for a document
    """

    sets: Annotated[tuple[EvaluationSet, ...], not_empty("name at least one evaluation set")] = ()
    gram_words: Annotated[int, within("[2, 100]")] = 8
    block_words: AtLeastOne = 5
    share: PositiveShare = 0.5
    part_letters: Natural = 40
    shortest_words: AtLeastOne = 5
    shortest_letters: AtLeastOne = 20
    most_hits: AtLeastOne = 100

    def __post_init__(self) -> None:
        names = [evaluation_set.name for evaluation_set in self.sets]
        validate(
            self,
            ("sets", len(set(names)) == len(names), "has one name twice"),
            (
                "block_words",
                self.block_words <= self.gram_words,
                f"exceeds gram_words = {self.gram_words}",
            ),
        )
