"""Built-in rewards that a program can verify: numbers, JSON, length, language, end of the answer.

Checked  tests/unit/align/test_rewards.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import referencing

from stamm.align.rewards.config import (
    Instructions,
    JsonFormat,
    Language,
    Length,
    NotMemorized,
    Number,
    corpus_files,
)
from stamm.align.rewards.reward import Answer
from stamm.base.errors import DataError, visible
from stamm.base.files import has_ending, read_json
from stamm.base.time_limit import time_limit
from stamm.corpus.dedup.shingles import Hashes, hash_shingles, hash_words
from stamm.corpus.documents import UnreadableRecord
from stamm.corpus.language.codes import UNDETERMINED, to_iso639_3
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.tables import read_rows
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.instruction_checks import parse_json
from stamm.evaluate.instructions import followed, read_instructions

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
    """See `config.Number`."""

    name = "number"

    def __init__(self, config: Number) -> None:
        self._column, self._tolerance = config.column, Fraction(repr(config.tolerance))

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        right, number = _number_of(answer.row, self._column), answer_number(answer.text)
        return float(number is not None and abs(number - right) <= self._tolerance)


class JsonReward:
    """See `config.JsonFormat`. References to schemas elsewhere are never fetched."""

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
    """See `config.Length`."""

    name = "length"

    def __init__(self, config: Length) -> None:
        self._window = config

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        return float(self._window.smallest <= len(answer.text) <= self._window.largest)


class LanguageReward:
    """See `config.Language`."""

    name = "language"

    def __init__(self, config: Language) -> None:
        self._wanted = _language(config.language) if config.language else None
        self._identifier = LanguageIdentifier(LanguageConfig())

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        wanted = self._wanted
        if wanted is None:
            row_language = answer.row.get("language")
            if not isinstance(row_language, str) or not row_language:
                raise DataError(
                    "the row has no column language", fix="Set reward.language=deu_Latn"
                )
            wanted = _language(row_language)
        identified = _language(self._identifier.identify(answer.text[:LONGEST_TEXT]).language)
        return float(identified[0] == wanted[0] and wanted[1] in ("", identified[1]))


class StoppedReward:
    """See `config.Stopped`."""

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
    language = _STANDARD_FORM.get(code, code if code == UNDETERMINED else to_iso639_3(code))
    if not language:
        raise DataError(f"language {visible(label, 40)} is not a code", fix="Write deu_Latn")
    return language, _SAME_SCRIPT.get(script, script)


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


class InstructionReward:
    """See `config.Instructions`."""

    name = "instructions"

    def __init__(self, config: Instructions) -> None:
        self._config = config

    def __call__(self, answer: Answer) -> float:
        """1 or 0, or the share of the row's instructions that are followed."""
        results = self.followed(answer)
        if self._config.count == "all":
            return float(all(results))
        return sum(results) / len(results)

    def followed(self, answer: Answer) -> list[bool]:
        """Whether each of the row's instructions is followed."""
        instructions = read_instructions(answer.row)
        return followed(instructions, answer.text, loose=self._config.mode == "loose")


_TRAIN = "train"
_MERGED_AT_ONCE = 1 << 24  # hashes that are collected before they are merged: 128 MiB


def n_gram_hashes(text: str, words: int) -> Hashes:
    """The hash of each run of `words` words of a text, in order."""
    return hash_shingles(hash_words(text).hashes, words)


def n_gram_index(texts: Iterable[str], words: int) -> Hashes:
    """The hashes of all runs of `words` words of the texts, sorted, each once.

    Memory   8 bytes for each different run, and as much again while they are merged
    """
    merged, waiting, count = np.empty(0, np.uint64), [np.empty(0, np.uint64)], 0
    for text in texts:
        waiting.append(np.unique(n_gram_hashes(text, words)))
        count += len(waiting[-1])
        if count >= _MERGED_AT_ONCE:
            merged, waiting, count = np.unique(np.concatenate([merged, *waiting])), [], 0
    return np.unique(np.concatenate([merged, *waiting]))


def shares_run(text: str, words: int, index: Hashes, but: Hashes) -> bool:
    """Whether a run of `words` words of the text occurs in the index.

    words   those of the index
    but     hashes of n-grams that do not count

    Edge     exact, but for two different n-grams with one hash of 64 bits
    """
    hashes = n_gram_hashes(text, words)
    if not len(hashes) or not len(index):
        return False
    insertions = np.minimum(np.searchsorted(index, hashes), len(index) - 1)
    shared = (index[insertions] == hashes) & ~np.isin(hashes, but)
    return bool(shared.any())


def corpus_texts(source: str, column: str) -> Iterator[str]:
    """The texts of a run's corpus (those that are trained on) or of a file.

    Raises   DataError for a record without text: an incomplete index would find copies clean.
    """
    files = corpus_files(source)
    if Path(source).is_dir():
        for file in files:
            for row in read_rows(file, ["text", "split"]):
                if row["split"] == _TRAIN:
                    yield row["text"]
        return
    (file,) = files
    if has_ending(file.name, ".txt"):
        yield file.read_text(encoding="utf-8", errors="replace")
        return
    for record in read_input(source, file, ReadLimits(), FieldNames(text=column)):
        if isinstance(record, UnreadableRecord):
            where = f"{source}, record {record.place.position}"
            raise DataError(f"{record.reason}: {record.detail}", where=where)
        yield record.content.decode("utf-8", errors="replace")


class NotMemorizedReward:
    """See `config.NotMemorized`."""

    name = "not_memorized"

    def __init__(self, config: NotMemorized) -> None:
        self._config = config
        texts = (text for source in config.corpus for text in corpus_texts(source, config.column))
        self._index = n_gram_index(texts, config.words)
        if not len(self._index):
            raise DataError(
                f"{', '.join(config.corpus)}: no text has {config.words} words",
                fix="Name the corpus that the model was trained on",
            )

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        text, words = answer.text, self._config.words
        if len(hash_words(text).hashes) < self._config.min_words:
            return 0.0
        quoted = [n_gram_hashes(prompt_text, words) for prompt_text in _prompt_texts(answer)]
        return float(not shares_run(text, words, self._index, np.concatenate(quoted)))


def _prompt_texts(answer: Answer) -> Iterator[str]:
    yield answer.prompt.system or ""
    yield from (turn.text for turn in answer.prompt.turns)
