"""Bounds by language, with a fallback by script and then for all texts, read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_file
from stamm.corpus.quality.bounds import RULES
from stamm.corpus.quality.measures import WordUse

SCHEMA: Final = 1
FILE: Final = "quality.json"
ANY: Final = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityBounds:
    """The bounds for one document.

    basis    texts they were fitted on: of a language ("deu_Latn"), of a script ("Latn") or "any"
    bounds   a bound for each rule that applies on this basis
    use      frequent words of the language; empty for a script: its rules are not applied
    """

    basis: str
    bounds: Mapping[str, float]
    use: WordUse


class QualityThresholds:
    """Bounds for every language, from a file that `fit` wrote.

    Raises   DataError when the file is missing or invalid.
    Checked  tests/unit/corpus/quality/test_thresholds.py
    """

    def __init__(self, path: Path) -> None:
        plain = read_json(path)
        try:
            if plain["schema"] != SCHEMA:
                raise ValueError(f"its schema is {plain['schema']}, not {SCHEMA}")
            self._bounds = {name: _bounds(name, entry) for name, entry in plain["bounds"].items()}
            self._bounds[ANY]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} is not a file of quality bounds: {type(error).__name__} {error}",
                fix="Run the fit again",
            ) from None
        self.sha256 = sha256_file(path)

    def for_language(self, language: str) -> QualityBounds | None:
        """The bounds of a language, or None."""
        return self._bounds.get(language)

    def for_script(self, script: str) -> QualityBounds:
        """The bounds of a script; those of all texts when it has none."""
        return self._bounds.get(script, self._bounds[ANY])


def _bounds(name: str, entry: Mapping[str, Any]) -> QualityBounds:
    bounds = {rule: float(bound) for rule, bound in entry["bounds"].items()}
    unknown = bounds.keys() - {rule.name for rule in RULES}
    if unknown:
        raise ValueError(f"unknown rules {sorted(unknown)}")
    words = tuple(str(word) for word in entry["stop_words"])
    orders = tuple((int(first), int(second)) for first, second in entry["orders"])
    if any(not 0 <= place < len(words) for pair in orders for place in pair):
        raise ValueError("an order names no stop word")
    return QualityBounds(basis=name, bounds=bounds, use=WordUse(stop_words=words, orders=orders))
