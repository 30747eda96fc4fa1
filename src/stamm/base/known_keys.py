"""Keys of external records: which are read, which are harmless, which have a meaning that is not honoured.

A reader of external data (rows, configuration files, metadata of a model file) declares a `KnownKeys`.
A key with a meaning that the reader does not honour is refused by name, unless its value has no
effect; unknown keys are counted by `UnknownKeys` and reported once.

CHAT_KEYS = KnownKeys(
    reader="chat rows",
    read=frozenset({"messages", "tools"}),
    harmless=frozenset({"id", "source"}),
    refused={"weight": RefusedKey("scales the loss of a message", neutral=(1,))},
)
CHAT_KEYS.check(row)          # DataError for weight = 0.5
unknown.add(CHAT_KEYS.unknown(row))

Checked  tests/unit/base/test_known_keys.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from stamm.base.errors import DataError, visible

_MOST_SHOWN = 12
_MOST_COUNTED = 10_000
_LONGEST_NAME = 60
_LONGEST_VALUE = 80
ANY_KEY = re.compile("")


@dataclass(frozen=True, kw_only=True)
class RefusedKey:
    """A key that changes what a record means, and that its reader does not honour.

    meaning   what it asks for: "scales the loss of a message"
    neutral   values that have no effect; null and an absent key never have one
    fix       what the user can do instead
    """

    meaning: str
    neutral: tuple[object, ...] = ()
    fix: str = ""

    def is_neutral(self, value: object) -> bool:
        """Whether `value` has no effect. True and 1 are different values, as in JSON."""
        if value is None:
            return True
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
            for neutral in self.neutral
        )


SUSPECT = RefusedKey(
    meaning="may change what is meant",
    neutral=(False, "", [], {}),
    fix="Remove the key where nothing uses it",
)


@dataclass(frozen=True, kw_only=True)
class KnownKeys:
    """The keys of one kind of external record.

    reader     what is read, for messages: "config.json of a Llama model"
    read       keys whose values are used
    harmless   keys known to change nothing that is done with the record
    refused    keys with a meaning that is not honoured
    suspect    finds the unknown keys that may change what a record means, ANY_KEY: all of them. They
               are refused as `suspected`, by default unless their value is null, false or empty
    """

    reader: str
    read: frozenset[str]
    harmless: frozenset[str] = frozenset()
    refused: Mapping[str, RefusedKey] = field(default_factory=dict)
    suspect: re.Pattern[str] | None = None
    suspected: RefusedKey = SUSPECT

    def __post_init__(self) -> None:
        counts = Counter([*self.read, *self.harmless, *self.refused])
        twice = sorted(key for key, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"{self.reader}: {twice} are in two groups")

    def check(self, record: Mapping[str, object], where: str = "") -> None:
        """Check that no refused key of `record` has an effect.

        where   the file, and the row or line, for the message

        Raises   DataError with the key, its value and its meaning.
        """
        for key in self.not_honoured(record):
            refusal = self.refused[key]
            raise DataError(
                f"{key} = {_shown(record[key])} {refusal.meaning}, which is not supported in "
                f"{self.reader}",
                where=where,
                fix=refusal.fix,
            )
        for key in self.unknown(record) if self.suspect else ():
            value = record[key]
            if self.suspect and self.suspect.search(key) and not self.suspected.is_neutral(value):
                raise DataError(
                    f"{_cut(visible(key), _LONGEST_NAME)} = {_shown(value)} is unknown in "
                    f"{self.reader}, and {self.suspected.meaning}",
                    where=where,
                    fix=self.suspected.fix,
                )

    def not_honoured(self, record: Mapping[str, object]) -> Iterator[str]:
        """The refused keys of `record` whose values have an effect."""
        for key, refusal in self.refused.items():
            if key in record and not refusal.is_neutral(record[key]):
                yield key

    def unknown(self, record: Mapping[str, object]) -> list[str]:
        """The keys of `record` that are in no group, sorted; without those whose value is null."""
        known = self.read | self.harmless | self.refused.keys()
        return sorted(
            str(key) for key, value in record.items() if value is not None and key not in known
        )


class UnknownKeys:
    """Counts unknown keys over the records of a reader, for one line of a log or a record."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, keys: Iterable[str], count: int = 1) -> None:
        """Count the unknown keys of `count` records. Beyond 10,000 keys others count together."""
        for key in keys:
            shown = _cut(visible(key), _LONGEST_NAME)
            if len(self._counts) >= _MOST_COUNTED and shown not in self._counts:
                shown = "(other keys)"
            self._counts[shown] += count

    def update(self, other: UnknownKeys) -> None:
        """Count the unknown keys of another reader, too."""
        for key, count in other._counts.items():
            self.add([key], count)

    def counts(self) -> dict[str, int]:
        """Records by key, the most frequent first, then by name; at most 1,000 keys."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:1000])

    def sentence(self, reader: str) -> str:
        """One line for the terminal: "Unknown keys in chat rows, not used: score (12)."; "" if none."""
        counts = list(self.counts().items())
        if not counts:
            return ""
        shown = ", ".join(f"{key} ({count:,})" for key, count in counts[:_MOST_SHOWN])
        more = len(self._counts) - _MOST_SHOWN
        rest = f" and {more:,} more" if more > 0 else ""
        return f"Unknown keys in {reader}, not used: {shown}{rest}."


def _shown(value: object) -> str:
    try:
        return _cut(visible(repr(value)), _LONGEST_VALUE)
    except ValueError:  # Python prints no integer of over 4,300 digits
        return "a number of thousands of digits"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
