"""Built-in rewards that a program can verify: numbers, JSON, length, language, end of the answer.

Checked  tests/unit/align/test_rewards.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import referencing

from stamm.align.rewards.reward import Answer
from stamm.align.rewards.reward_config import (
    JsonFormat,
    Language,
    Length,
    Number,
)
from stamm.base.errors import DataError, visible
from stamm.base.files import read_json
from stamm.base.time_limit import time_limit
from stamm.corpus.language.codes import UNDETERMINED, to_iso639_3
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.instruction_checks import parse_json

LONGEST_TEXT = 1_000_000
"""Characters of an answer; a longer one has no verifiable reward."""
VALIDATION_SECONDS = 5.0
"""Processor time to validate one answer by its schema; beyond it the row has no reward."""

# Source: the table of macrolanguages of ISO 639-3 (SIL International).
_STANDARD_FORM = {
    "zho": "cmn", "ara": "arb", "fas": "pes", "nor": "nob", "swa": "swh", "msa": "zsm",
    "ori": "ory", "mon": "khk", "uzb": "uzn", "aze": "azj", "sqi": "als", "yid": "ydd",
    "pus": "pbt", "mlg": "plt",
}  # fmt: skip
# Language, script and region, as in "zh-Hans-CN" (BCP 47).
_TAG = re.compile(r"([A-Za-z]{2,3})(?:[_-]([A-Za-z]{4}))?(?:[_-](?:[A-Za-z]{2}|[0-9]{3}))?")
_SAME_SCRIPT = {"Hans": "Hani", "Hant": "Hani", "Hang": "Kore"}


class NumberReward:
    """See `reward_config.Number`."""

    name = "number"

    def __init__(self, config: Number) -> None:
        self._column, self._tolerance = config.column, Fraction(repr(config.tolerance))

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        right, number = _number_of(answer.row, self._column), answer_number(answer.text)
        return float(number is not None and abs(number - right) <= self._tolerance)


class JsonReward:
    """See `reward_config.JsonFormat`. References to schemas elsewhere are never fetched."""

    name = "json_format"

    def __init__(self, config: JsonFormat) -> None:
        self._fence = config.fence
        self._validator: Any = None
        if config.schema:
            self._validator = _validator(read_json(Path(config.schema)), config.schema)

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        text = answer.text
        if len(text) > LONGEST_TEXT:
            return 0.0
        try:
            value = parse_json(text, fence=self._fence)
        except (ValueError, RecursionError):
            return 0.0
        validator = self._validator
        try:
            with time_limit(VALIDATION_SECONDS):
                if validator is None and answer.row.get("schema") is not None:
                    validator = _validator(answer.row["schema"], "column schema")
                return float(validator is None or validator.is_valid(value))
        except (RecursionError, TimeoutError, referencing.exceptions.Unresolvable) as error:
            raise DataError(f"the schema cannot be applied: {type(error).__name__}") from None


class LengthReward:
    """See `reward_config.Length`."""

    name = "length"

    def __init__(self, config: Length) -> None:
        self._window = config

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        return float(self._window.smallest <= len(answer.text) <= self._window.largest)


class LanguageReward:
    """See `reward_config.Language`."""

    name = "language"

    def __init__(self, config: Language) -> None:
        self._wanted = _language(config.language) if config.language else None
        self._identifier = LanguageIdentifier(LanguageConfig())

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        wanted = self._wanted
        if wanted is None:
            given = answer.row.get("language")
            if not isinstance(given, str) or not given:
                raise DataError(
                    "the row has no column language", fix="Set reward.language=deu_Latn"
                )
            wanted = _language(given)
        found = _language(self._identifier.identify(answer.text[:LONGEST_TEXT]).language)
        return float(found[0] == wanted[0] and wanted[1] in ("", found[1]))


class StoppedReward:
    """See `reward_config.Stopped`."""

    name = "stopped"

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        stopped = answer.row.get("stopped")
        if not isinstance(stopped, bool):
            raise DataError(
                "the row has no column stopped with true or false",
                fix="Score the completions of `stamm sample`",
            )
        return float(stopped)


def _language(label: str) -> tuple[str, str]:
    """The ISO 639-3 code and the script of a label such as "de", "deu", "deu_Latn" or "zho_Hans".

    Edge     a macrolanguage is its standard form (zho: cmn); both Chinese scripts are Hani, and the
             script is "" where the label names none; the region of a tag such as "de-DE" is not compared
    Raises   DataError for a label of another form
    """
    match = _TAG.fullmatch(label)
    code, script = (match[1].lower(), (match[2] or "").title()) if match else ("", "")
    found = _STANDARD_FORM.get(code, code if code == UNDETERMINED else to_iso639_3(code))
    if not found:
        raise DataError(f"language {visible(label, 40)} is not a code", fix="Write deu_Latn")
    return found, _SAME_SCRIPT.get(script, script)


def _number_of(row: Mapping[str, Any], column: str) -> Fraction:
    value = row.get(column)
    if value is None:
        raise DataError(f"the row has no column {column}", fix="Set reward.column")
    number = answer_number(str(value)) if isinstance(value, str | int | float) else None
    if number is None:
        raise DataError(f"column {column} is not a number: {str(value)[:80]!r}")
    return number


def _validator(schema: object, where: str) -> Any:
    if not isinstance(schema, dict | bool):
        raise DataError(f"{where} is not a JSON schema: an object is expected")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise DataError(f"{where} is not a JSON schema: {error.message[:200]}") from None
    return kind(schema, registry=referencing.Registry())
