"""Items of evaluation sets from JSON lines. A set that cannot be read completely is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.documents import clean_field, whole_text
from stamm.corpus.inputs import locate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, Line, StreamError, bounded_lines

LONGEST_ID = 128


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of an evaluation set, with its texts to look for."""

    set_name: str
    item_id: str
    texts: tuple[str, ...]


def read_items(evaluation: EvaluationSet, path: Path, limits: ReadLimits) -> Iterator[Item]:
    """The items of a set, in order. Blank lines are skipped.

    Edge     an identifier is cut at 128 characters
    Raises   DataError for a line that is not an object, lacks a key or has another type than a
             string under it, and for a set without items: an incomplete index would report a
             contaminated corpus as clean.
    """
    empty = True
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                if line.data.strip():
                    yield _item(evaluation, line, limits)
                    empty = False
        except StreamError as stopped:
            raise DataError(
                f"evaluation set {evaluation.name!r} is cut: {stopped.detail}",
                where=evaluation.file,
                fix="Get the file again",
            ) from None
    if empty:
        raise DataError(
            f"evaluation set {evaluation.name!r} has no item",
            where=evaluation.file,
            fix="Get the file again, or leave the set out",
        )


def read_sets(config: ContaminationConfig, limits: ReadLimits) -> Iterator[Item]:
    """The items of every evaluation set of a configuration, set after set; raises as `read_items`."""
    for evaluation_set in config.sets:
        yield from read_items(
            evaluation_set, locate(evaluation_set.file, "corpus.contamination"), limits
        )


def _item(evaluation: EvaluationSet, line: Line, limits: ReadLimits) -> Item:
    where = f"line {line.number} of {evaluation.file}"
    if line.size > limits.line_bytes:
        raise DataError(f"a line has {line.size} bytes, limit {limits.line_bytes}", where=where)
    try:
        row: Any = parse_json(line.data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"an evaluation item is not JSON: {error}", where=where) from None
    if not isinstance(row, dict):
        raise DataError(f"an evaluation item is a {type(row).__name__}, not an object", where=where)
    texts = [_field(evaluation, row, key, where) for key in evaluation.fields]
    named = _field(evaluation, row, evaluation.id, where) if evaluation.id else line.number
    for key, text in zip(evaluation.fields, texts, strict=True):
        if not isinstance(text, str):
            raise DataError(f"{key!r} is a {type(text).__name__}, not a string", where=where)
    if not isinstance(named, str | int):
        raise DataError(
            f"{evaluation.id!r} is a {type(named).__name__}, not a string or integer", where=where
        )
    return Item(
        set_name=evaluation.name,
        item_id=clean_field(str(named))[:LONGEST_ID],
        texts=tuple(whole_text(text) for text in texts),
    )


def _field(evaluation: EvaluationSet, row: dict[str, Any], key: str, where: str) -> Any:
    if key not in row:
        raise DataError(
            f"an item of {evaluation.name!r} has no {key!r}",
            where=where,
            fix=f"Set fields and id of this set. {nearest(key, map(str, row))}",
        )
    return row[key]
