"""Parse JSON in which each key of an object occurs once: a key with two values is an error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any


class RepeatedKeyError(ValueError):
    """A key is given twice in one object of JSON or YAML."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises   ValueError when it is not JSON, RepeatedKeyError for a key with two values; RecursionError
             for a value that is nested too deeply
    Checked  tests/unit/base/test_json_text.py
    """
    return json.loads(text, object_pairs_hook=once_each)


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these keys and values, for readers with a decoder of their own.

    Raises   RepeatedKeyError
    """
    row = dict(pairs)
    if len(row) < len(pairs):
        check_once(key for key, _ in pairs)
    return row


def check_once(keys: Iterable[Any]) -> None:
    """Raise RepeatedKeyError when a key occurs twice."""
    repeated = next((key for key, count in Counter(keys).items() if count > 1), None)
    if repeated is not None:
        raise RepeatedKeyError(f"two values for the key {str(repeated)[:80]!r}")
