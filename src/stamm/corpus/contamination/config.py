"""Which evaluation sets are looked for, and what counts as found. Light: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """One evaluation set, as JSON lines.

    name     what hits are called by
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
            ("name", 0 < len(self.name) <= 100 and self.name.isprintable(), "is no short name"),
            ("file", bool(self.file), "is empty: name a file"),
            ("fields", len(self.fields) > 0, "is empty: name at least one key"),
            ("fields", len(set(self.fields)) == len(self.fields), "names a key twice"),
        )


@dataclass(frozen=True, kw_only=True)
class ContaminationConfig:
    """When a document holds an evaluation text.

    A text of `gram_words` words and more is found where a run of so many agrees and then at least
    `share` of its words stand there in runs of `block_words` or more. A shorter one is found
    where it stands by itself, whole: as a sentence, a line, between quotes.

    Letters are counted too, since in scripts without blanks each character is a word: 8 letters
    of Thai are a chance phrase. A wide one (Han, kana, Hangul) counts for three.

    Runs of 8 words, as Apertus took for its posttraining data, find a question in which a word was
    changed three to four times as often as runs of 13; the overlap asked for keeps chance out.

    part_letters      found in part, a text must show so many letters
    shortest_words    a text with fewer words is not looked for; the index counts it
    shortest_letters  nor is one with fewer letters, which any book has by chance
    most_hits         a document names at most so many items
    """

    sets: tuple[EvaluationSet, ...]
    gram_words: int = 8
    block_words: int = 5
    share: float = 0.5
    part_letters: int = 40
    shortest_words: int = 5
    shortest_letters: int = 20
    most_hits: int = 100

    def __post_init__(self) -> None:
        names = [one.name for one in self.sets]
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
