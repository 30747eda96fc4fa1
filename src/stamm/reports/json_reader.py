"""Reading what jobs left behind: typed, bounded, and with the file's name in every complaint.

A run folder may come from anyone. A value of the wrong type, a missing key or a file too large
to be what it claims is a DataError that names the file and the key; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.base.units import bytes_text

LARGEST_JSON = 64 * 2**20
LONGEST_LINE = 4 * 2**20
LARGEST_WHOLE = 2**63
_FIX = "Restore the file, or delete its folder and run the step again"


class Record:
    """A JSON object together with the place it was read from.

    plain   the object's keys and values
    where   the file, and the path inside it, for messages
    """

    def __init__(self, plain: object, where: str, fix: str = _FIX) -> None:
        if not isinstance(plain, Mapping):
            raise DataError(f"{where} holds {_name(plain)}, not an object", fix=fix)
        self.plain: Mapping[str, Any] = plain
        self.where = where
        self._fix = fix

    def has(self, key: str) -> bool:
        """Whether the key is there with a value that is not null."""
        return self.plain.get(key) is not None

    def number(self, key: str) -> float:
        """A number; infinities and NaN are numbers too (a run may have diverged)."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, value, "a number")
        return self._float(key, value)

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        if abs(value) >= LARGEST_WHOLE:
            raise self._wrong(key, value, "a whole number of 64 bits")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        """A string, as it stands: untrusted."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of texts")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._get(key)
        if not isinstance(value, list) or not all(
            isinstance(item, (int, float)) and not isinstance(item, bool) for item in value
        ):
            raise self._wrong(key, value, "a list of numbers")
        return tuple(self._float(key, item) for item in value)

    def record(self, key: str) -> Record:
        """The object under `key`."""
        return Record(self._get(key), f"{self.where}, {key}")

    def records(self, key: str) -> tuple[Record, ...]:
        """The list of objects under `key`."""
        value = self._get(key)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return tuple(Record(item, f"{self.where}, {key}[{i}]") for i, item in enumerate(value))

    def items(self, key: str) -> tuple[tuple[str, Record], ...]:
        """The objects of a table of objects, with their names, in the file's order."""
        table = self.record(key)
        return tuple((name, table.record(name)) for name in table.plain)

    def _get(self, key: str) -> Any:
        if key not in self.plain:
            raise DataError(f"{self.where} has no {key!r}", fix=self._fix)
        return self.plain[key]

    def _float(self, key: str, value: float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(key, "a number of at most 1.8e308") from None

    def wrong(self, key: str, wanted: str) -> DataError:
        """The error for a value under `key` that is not what is `wanted` there."""
        return self._wrong(key, self.plain[key], wanted)

    def _wrong(self, key: str, value: object, wanted: str) -> DataError:
        shown = _shown(value)
        cut = shown if len(shown) <= 80 else shown[:79] + "…"
        return DataError(f"{self.where}: {key} = {cut} is not {wanted}", fix=self._fix)


def record_in(path: Path, schema: int | None = None, fix: str = _FIX) -> Record:
    """The JSON object in `path`.

    schema   the version it must state under "schema"; None when it states none
    fix      advice of the error for a file that is not a JSON object

    Raises   DataError when the file is missing, over 64 MiB, not JSON, not an object, or of
             another schema.
    """
    if path.is_file() and path.stat().st_size > LARGEST_JSON:
        raise DataError(f"{path} has {bytes_text(path.stat().st_size)}: too large for a summary")
    record = Record(read_json(path, fix), str(path), fix)
    if schema is not None and record.whole("schema") != schema:
        raise DataError(
            f"{path} has schema {record.whole('schema')}; this report reads {schema}",
            fix="Use the version of stamm that wrote it",
        )
    return record


def record_if_there(path: Path, schema: int | None = None, fix: str = _FIX) -> Record | None:
    """The JSON object in `path`, or None when there is no such file: the part was not run."""
    return record_in(path, schema, fix) if path.exists() else None


def lines_of(path: Path) -> Iterator[Record]:
    """The objects of a JSONL file, in order; blank lines are skipped.

    A last line without its newline is what a killed run leaves behind: it is not read.

    Raises   DataError that names the line, when one is not a JSON object or over 4 MiB.
    """
    with path.open("rb") as opened:
        number = 0
        while line := opened.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise DataError(f"line {number} of {path} is over {bytes_text(LONGEST_LINE)}")
            if not line.strip() or not line.endswith(b"\n"):
                continue
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"line {number} of {path} is not JSON: {error}", fix=_FIX) from None
            yield Record(plain, f"{path}, line {number}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no integer of over 4,300 digits
        return "a number of thousands of digits"


def _name(value: object) -> str:
    return {list: "a list", str: "text", type(None): "null"}.get(type(value), "a plain value")
