"""The protocol of a corpus filter of the user's own, and its loading and application.

Filters are named in corpus.filters, "mine.py:MyFilter", and are applied in that order to each document
that the built-in document filters keep. Tutorial: docs/extending/corpus_filter.md
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol, runtime_checkable

from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.user_code import load_reference
from stamm.corpus.reasons import REASONS

LONGEST_DETAIL = 200
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WHERE = "corpus.filters"


@dataclass(frozen=True, kw_only=True)
class FilterDocument:
    """A document as a corpus filter reads it.

    text                 as it would be kept: extracted, personal data replaced
    document_id, url, host, source, licence, language, date, path   as in the ledger
    toxicity, quality    scores of the classifiers, -1 without one
    """

    text: str
    document_id: str
    url: str
    host: str
    source: str
    licence: str
    language: str
    date: str
    path: str
    toxicity: float
    quality: float


FILTER_COLUMNS = tuple(f.name for f in fields(FilterDocument) if f.name != "text")
"""Columns of the ledger that a filter reads."""


@runtime_checkable
class CorpusFilter(Protocol):
    """A corpus filter.

    name   reason in the ledger: lower-case letters, digits and _, at most 40 characters
    """

    name: str

    def __call__(self, document: FilterDocument) -> str | None:
        """None to keep the document, else the detail for the ledger, which may be empty.

        The result may depend on the document only: documents are filtered in any order, by any
        number of processes.
        """


@dataclass(frozen=True, kw_only=True)
class LoadedFilter:
    """A corpus filter with the reference that names it."""

    name: str
    reference: str
    function: CorpusFilter

    def apply(self, document: FilterDocument) -> str | None:
        """None to keep the document, else the detail: printable, at most 200 characters.

        Raises   DataError that names filter, document and line where the filter raises an
                 exception, or returns something else.
        """
        try:
            detail = self.function(document)
        except Exception as error:
            raise DataError(
                f"corpus filter {self.name!r} failed on document {document.document_id}: "
                f"{type(error).__name__}: {visible(str(error), LONGEST_DETAIL)}",
                where=self._line(error),
                fix="Correct the filter and run the same command",
            ) from error
        if detail is None:
            return None
        if not isinstance(detail, str):
            raise DataError(
                f"corpus filter {self.name!r} returned {type(detail).__name__} for document "
                f"{document.document_id}",
                where=self.reference,
                fix="Return None to keep a document, or a string to drop it",
            )
        return visible(detail, LONGEST_DETAIL)

    def _line(self, error: Exception) -> str:
        """The last line of the filter's own file that the exception passed through."""
        file = getattr(sys.modules.get(type(self.function).__module__), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        return f"{file}, line {lines[-1]}" if lines else self.reference


def load_filters(references: Sequence[str]) -> tuple[LoadedFilter, ...]:
    """The filters that `references` name, in order.

    Raises   ConfigError when one cannot be loaded or is not a corpus filter, and for a name that
             is not usable, the reason of a built-in filter, or used twice.
    """
    found: dict[str, LoadedFilter] = {}
    for reference in references:
        function = load_reference(reference, CorpusFilter, "a corpus filter")
        name = function.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{reference} has name = {name!r}, which cannot be a reason of the ledger",
                where=_WHERE,
                fix="Use at most 40 lower-case letters, digits and _",
            )
        if name in REASONS or name in found:
            other = found[name].reference if name in found else "a built-in filter"
            raise ConfigError(
                f"{reference} has name = {name!r}, which is a reason of {other}",
                where=_WHERE,
                fix="Give it another name",
            )
        found[name] = LoadedFilter(name=name, reference=reference, function=function)
    return tuple(found.values())


def at_absolute_path(reference: str, files: Mapping[str, Path]) -> str:
    """`reference` with its file in `files`, as `code_files` gives them; a module is kept as it is."""
    path, colon, name = (
        (reference, "", "") if reference.endswith(".py") else reference.rpartition(":")
    )
    return f"{files[path]}{colon}{name}" if path.endswith(".py") else reference
