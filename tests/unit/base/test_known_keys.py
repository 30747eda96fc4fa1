"""Keys of external records: read, harmless, refused, unknown."""

from __future__ import annotations

import re

import pytest

from stamm.base.errors import DataError
from stamm.base.known_keys import ANY_KEY, KnownKeys, RefusedKey, UnknownKeys

KEYS = KnownKeys(
    reader="test rows",
    read=frozenset({"text"}),
    harmless=frozenset({"id"}),
    refused={"weight": RefusedKey(meaning="scales the loss", neutral=(1,), fix="Remove it")},
)


@pytest.mark.parametrize("value", [0, 0.5, True, False, "1", [1], "x" * 500])
def test_a_key_with_a_meaning_is_refused_by_name(value: object) -> None:
    with pytest.raises(DataError, match=r"weight = .* scales the loss") as raised:
        KEYS.check({"text": "a", "weight": value}, where="rows.jsonl, row 3")
    assert "rows.jsonl, row 3" in raised.value.line()
    assert len(raised.value.line()) < 250


@pytest.mark.parametrize("row", [{}, {"weight": None}, {"weight": 1}, {"weight": 1.0}])
def test_a_value_that_asks_for_nothing_is_accepted(row: dict[str, object]) -> None:
    KEYS.check(row)


def test_unknown_keys_are_counted_and_named_once() -> None:
    unknown = UnknownKeys()
    for row in ({"text": "a", "score": 1}, {"score": 2, "model\x1b": "m", "empty": None}):
        unknown.add(KEYS.unknown(row))
    assert unknown.counts() == {"score": 2, "model\\x1b": 1}
    assert unknown.sentence("rows") == "Unknown keys in rows, not used: score (2), model\\x1b (1)."
    assert UnknownKeys().sentence("rows") == ""


def test_an_unknown_key_that_is_suspect_is_refused() -> None:
    keys = KnownKeys(reader="rows", read=frozenset({"scale"}), suspect=re.compile("scale"))
    keys.check({"scale": 2, "rows": 3, "rescale": None, "scale_up": False, "scale_by": []})
    with pytest.raises(DataError, match=r"^rescale = 1 is unknown in rows, and may change"):
        keys.check({"rescale": 1})


def test_a_key_has_one_group() -> None:
    with pytest.raises(ValueError, match="two groups"):
        KnownKeys(reader="r", read=frozenset({"a"}), harmless=frozenset({"a"}))


def test_a_closed_reader_refuses_unknown_keys_unless_they_are_empty() -> None:
    keys = KnownKeys(reader="calls", read=frozenset({"name"}), suspect=ANY_KEY)
    keys.check({"name": "f", "more": "", "other": None, "list": []})
    with pytest.raises(DataError, match="more = 0 is unknown in calls"):
        keys.check({"name": "f", "more": 0})
