"""Labelled texts for a head: read strictly, put in one order, split so that nothing leaks.

Texts of one group stay on one side of the split. A group is given (a template, a book), or it is
the text's skeleton: letters only, so that two posts that differ in a handle, a number or a mark
count as one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stamm.base.errors import DataError
from stamm.corpus.classifiers.features import normalize_spelling
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

SplitName = Literal["train", "calibrate", "test"]

LONGEST_FIELD = 200
_LINE_BYTES = 8 * 2**20
_EXPANSION = 200
_SKELETON_CHARACTERS = 10_000
_NOT_LETTERS = re.compile(r"[\W\d_]+")


@dataclass(frozen=True, kw_only=True)
class LabelledText:
    """One text with its label.

    group          texts of one group stay on one side of the split
    functionality  what the case tests, in a functional test suite; else empty
    clean          it comes from a source that counts as label 0 as a whole
    """

    text: str
    label: int
    language: str
    group: str
    source: str
    functionality: str
    clean: bool


def read_examples(paths: Iterable[Path], *, labelled: bool) -> list[LabelledText]:
    """The examples of some files, each once, in an order that depends on their content alone.

    labelled   each line must carry "label", 0 or 1; else none may, and all count as 0
    Raises     DataError for a line that is not an example: a head learns from all of it or not.
    """
    found: dict[bytes, LabelledText] = {}
    for path in paths:
        with BoundedStream(path, _EXPANSION) as stream:
            try:
                for line in bounded_lines(stream, _LINE_BYTES):
                    where = f"line {line.number} of {path.name}"
                    if line.size > _LINE_BYTES:
                        raise _unusable(f"{line.size} bytes, limit {_LINE_BYTES}", where)
                    if line.data.strip():
                        example = _example(line.data, where, labelled)
                        found[_key(example)] = example
            except StreamError as stopped:
                raise DataError(
                    f"{path.name} cannot be read to its end: {stopped.detail}",
                    fix="Fetch or write the file again",
                ) from None
    return [found[key] for key in sorted(found)]


def split_of(group: str, seed: int, test: float, calibrate: float) -> SplitName:
    """The side of the split that a group falls on: a function of its name and the seed alone."""
    digest = hashlib.sha256(f"{seed}\n{group}".encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < test:
        return "test"
    return "calibrate" if place < test + calibrate else "train"


def skeleton(text: str) -> str:
    """A hash of the letters of a text's first 10,000 characters, in one spelling."""
    letters = _NOT_LETTERS.sub("", normalize_spelling(text[:_SKELETON_CHARACTERS]))
    return hashlib.sha256(letters.encode("utf-8", "surrogatepass")).hexdigest()


def balance(examples: Sequence[LabelledText], heaviest: float) -> list[float]:
    """A weight for each example: in a language, label 1, label 0 and clean documents weigh the same.

    heaviest   nothing weighs more, so that a handful of rare texts cannot decide; 1 is the average
    """
    kinds = [(e.language, e.label, e.clean) for e in examples]
    counts = Counter(kinds)
    totals = Counter(e.language for e in examples)
    parts = Counter(language for language, _, _ in counts)
    return [min(heaviest, totals[kind[0]] / (parts[kind[0]] * counts[kind])) for kind in kinds]


def _example(data: bytes, where: str, labelled: bool) -> LabelledText:
    try:
        row: Any = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _unusable(f"{type(error).__name__}, not JSON", where) from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise _unusable("not an object with a string under 'text'", where)
    label = row.get("label")
    if labelled and (type(label) is not int or label not in (0, 1)):
        raise _unusable(f"label = {str(label)[:20]!r} is neither 0 nor 1", where)
    if not labelled and label is not None:
        raise _unusable("a label in a file that is taken as clean", where)
    words = {}
    for key in ("language", "group", "source", "functionality"):
        value = row.get(key, "")
        if not isinstance(value, str) or len(value) > LONGEST_FIELD:
            raise _unusable(f"{key} is no string of at most {LONGEST_FIELD} characters", where)
        words[key] = value
    if not words["language"]:
        raise _unusable("no language", where)
    return LabelledText(
        text=row["text"],
        label=int(label or 0),
        language=words["language"],
        group=f"given:{words['group']}" if words["group"] else skeleton(row["text"]),
        source=words["source"],
        functionality=words["functionality"],
        clean=not labelled,
    )


def _key(example: LabelledText) -> bytes:
    text = example.text.encode("utf-8", "surrogatepass")
    rest = [
        example.label,
        example.language,
        example.group,
        example.source,
        example.functionality,
        example.clean,
    ]
    return hashlib.sha256(hashlib.sha256(text).digest() + json.dumps(rest).encode()).digest()


def _unusable(what: str, where: str) -> DataError:
    return DataError(
        f"not an example: {what}",
        where=where,
        fix='Write {"text": …, "label": 0 or 1, "language": "deu_Latn"} on each line',
    )
