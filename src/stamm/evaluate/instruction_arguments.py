"""Arguments of a checkable instruction: typed access to the column kwargs of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stamm.base.errors import DataError, visible

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    **dict.fromkeys(("at least", "al menos", "au moins", "以上"), lambda count, n: count >= n),
    **dict.fromkeys(("less than", "moins de", "未満"), lambda count, n: count < n),
    **dict.fromkeys(("at most", "como máximo"), lambda count, n: count <= n),
}


@dataclass(frozen=True)
class InstructionArguments:
    """Arguments of one instruction.

    name       its id, for messages
    values     the row's kwargs of it; None stands for an absent value
    language   prefix of the id, "en" for "en:keywords:existence"; "" without one
    identify   language of a text, "deu_Latn" or "und"
    """

    name: str
    values: Mapping[str, Any]
    language: str
    identify: Callable[[str], str]

    def number(self, key: str) -> int:
        """A whole number that is not negative."""
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # Parquet columns with missing values hold floats
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number")
        return value

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts that are not empty."""
        value = self.values.get(key)
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong(key, "a list of texts")
        if not all(isinstance(text, str) and text.strip() for text in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def pairs(self, key: str) -> Mapping[str, str]:
        """Texts by text."""
        value = self.values.get(key)
        if not isinstance(value, Mapping) or not value:
            raise self._wrong(key, "an object of texts")
        return {str(name): str(text) for name, text in value.items() if text is not None}

    def holds(self, count: int, key: str, relation: str = "relation") -> bool:
        """Whether `count` has the relation `relation` to the number `key`: "at least", ...

        Without the argument `relation` it is "at least".
        """
        name = self.values.get(relation)
        name = "at least" if name is None else name
        if name not in _RELATIONS:
            raise self._wrong(relation, f"one of {', '.join(_RELATIONS)}")
        return _RELATIONS[name](count, self.number(key))

    def _wrong(self, key: str, wanted: str) -> DataError:
        shown = visible(repr(self.values.get(key)), 60)
        return DataError(f"{self.name}: kwargs has {key} = {shown}, not {wanted}")
