"""Configuration of decontamination: evaluation sets, and when a text counts as found. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

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
    file: str
    fields: tuple[str, ...] = ("text",)
    id: str = "id"

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "name",
                0 < len(self.name) <= 100 and self.name.isprintable(),
                "must have 1 to 100 printable characters",
            ),
            ("file", bool(self.file), "is empty: name a file"),
            ("fields", len(self.fields) > 0, "is empty: name at least one key"),
            ("fields", len(set(self.fields)) == len(self.fields), "names a key twice"),
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

    sets: tuple[EvaluationSet, ...] = ()
    gram_words: int = 8
    block_words: int = 5
    share: float = 0.5
    part_letters: int = 40
    shortest_words: int = 5
    shortest_letters: int = 20
    most_hits: int = 100

    def __post_init__(self) -> None:
        names = [evaluation_set.name for evaluation_set in self.sets]
        blocks = 1 <= self.block_words <= self.gram_words
        validate(
            self,
            ("sets", len(self.sets) > 0, "is empty: name at least one evaluation set"),
            ("sets", len(set(names)) == len(names), "has one name twice"),
            ("gram_words", 2 <= self.gram_words <= 100, "must lie in 2 to 100"),
            ("block_words", blocks, f"must lie in 1 to gram_words = {self.gram_words}"),
            ("share", 0.0 < self.share <= 1.0, "must lie in (0, 1]"),
            ("shortest_words", self.shortest_words >= 1, "must be at least 1"),
            ("shortest_letters", self.shortest_letters >= 1, "must be at least 1"),
            ("part_letters", self.part_letters >= 0, "must not be negative"),
            ("most_hits", self.most_hits >= 1, "must be at least 1"),
        )
