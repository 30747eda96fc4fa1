"""Labelled texts for a classifier: validated, ordered by content, and split without leakage.

Texts of one group stay on one side of the split. A group is given (a template, a book), or it is
the text's skeleton: its letters only, so that two posts that differ in a handle, a number or
punctuation count as one.
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
from stamm.base.json_text import parse_json
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
    functionality  the tested functionality, in a functional test suite; else empty
    clean          whether its source counts as label 0 as a whole
    """

    text: str
    label: int
    language: str
    group: str
    source: str
    functionality: str
    clean: bool


def read_examples(paths: Iterable[Path], *, labelled: bool) -> list[LabelledText]:
    """Read the examples of some files, each once, in an order given by their content alone.

    labelled   each line must have "label", 0 or 1; else none may, and all count as 0
    Raises     DataError for an invalid line.
    """
    examples_by_key: dict[bytes, LabelledText] = {}
    for path in paths:
        with BoundedStream(path, _EXPANSION) as stream:
            try:
                for line in bounded_lines(stream, _LINE_BYTES):
                    where = f"line {line.number} of {path.name}"
                    if line.size > _LINE_BYTES:
                        raise _unusable(f"{line.size} bytes, limit {_LINE_BYTES}", where)
                    if line.data.strip():
                        example = _example(line.data, where, labelled)
                        examples_by_key[_key(example)] = example
            except StreamError as stopped:
                raise DataError(
                    f"{path.name} cannot be read completely: {stopped.detail}",
                    fix="Fetch or write the file again",
                ) from None
    return [examples_by_key[key] for key in sorted(examples_by_key)]


def split_of(group: str, seed: int, test: float, calibrate: float) -> SplitName:
    """The split of a group: a function of its name and the seed alone."""
    digest = hashlib.sha256(f"{seed}\n{group}".encode("utf-8", "surrogatepass")).digest()
    fraction = int.from_bytes(digest[:8], "big") / 2**64
    if fraction < test:
        return "test"
    return "calibrate" if fraction < test + calibrate else "train"


def skeleton(text: str) -> str:
    """Hash of the normalized letters of a text's first 10,000 characters."""
    letters = _NOT_LETTERS.sub("", normalize_spelling(text[:_SKELETON_CHARACTERS]))
    return hashlib.sha256(letters.encode("utf-8", "surrogatepass")).hexdigest()


def balanced_weights(examples: Sequence[LabelledText], max_weight: float) -> list[float]:
    """A weight for each example: in a language, label 1, label 0 and clean documents weigh equally.

    max_weight   upper bound, so that a few rare texts cannot dominate; 1 is the average
    """
    kinds = [(e.language, e.label, e.clean) for e in examples]
    counts = Counter(kinds)
    totals = Counter(e.language for e in examples)
    parts = Counter(language for language, _, _ in counts)
    return [min(max_weight, totals[kind[0]] / (parts[kind[0]] * counts[kind])) for kind in kinds]


def _example(data: bytes, where: str, labelled: bool) -> LabelledText:
    try:
        row: Any = parse_json(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _unusable(f"{type(error).__name__}, not JSON", where) from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise _unusable("not an object with a string under 'text'", where)
    label = row.get("label")
    if labelled and (type(label) is not int or label not in (0, 1)):
        raise _unusable(f"label = {str(label)[:20]!r} is neither 0 nor 1", where)
    if not labelled and label is not None:
        raise _unusable("a label in a file that is taken as clean", where)
    texts = {}
    for key in ("language", "group", "source", "functionality"):
        value = row.get(key, "")
        if not isinstance(value, str) or len(value) > LONGEST_FIELD:
            raise _unusable(f"{key} is not a string of at most {LONGEST_FIELD} characters", where)
        texts[key] = value
    if not texts["language"]:
        raise _unusable("no language", where)
    return LabelledText(
        text=row["text"],
        label=int(label or 0),
        language=texts["language"],
        group=f"given:{texts['group']}" if texts["group"] else skeleton(row["text"]),
        source=texts["source"],
        functionality=texts["functionality"],
        clean=not labelled,
    )


def _key(example: LabelledText) -> bytes:
    text = example.text.encode("utf-8", "surrogatepass")
    _, *rest = vars(example).values()
    return hashlib.sha256(hashlib.sha256(text).digest() + json.dumps(rest).encode()).digest()


def _unusable(what: str, where: str) -> DataError:
    return DataError(
        f"not an example: {what}",
        where=where,
        fix='Write {"text": …, "label": 0 or 1, "language": "deu_Latn"} on each line',
    )
