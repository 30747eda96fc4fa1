"""The protocol of a corpus filter, and the loading, order and application of filters.

A filter decides about one document after another. The built-in ones are in `built_in_filters`; a user's,
"mine.py:MyFilter" in corpus.filters, is applied before the one that its `before` names, else after all.
Optional attributes of a filter have protocols of their own here. Tutorial: docs/extending/corpus_filter.md
"""

from __future__ import annotations

import math
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError, visible
from stamm.base.user_code import load_reference
from stamm.corpus.documents import Signals, whole_text
from stamm.corpus.ledger import COLUMNS, PII_KINDS, REASONS, RESERVED, UNSCORED

if TYPE_CHECKING:  # a recipe loads filters without the HTML parser
    from stamm.corpus.licences.markup import LicenceMark

BUILT_IN = ("length", "licence", "language", "quality", "contamination", "classifiers", "pii")
"""The built-in filters in their order; a user's filter can name one in `before`."""
LONGEST_DETAIL = 200
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WHERE = "corpus.filters"
_FIX_NAME = "Use at most 40 lower-case letters, digits and _"
# Optional attributes of a filter: the type, and the fix for a value of another type.
_KINDS: dict[str, tuple[Any, str]] = {
    "before": (str, "Give the name of a built-in filter"),
    "columns": (Mapping, "Give a dictionary of names and values"),
    "reasons": (tuple | list, "Give a tuple of names"),
}

Value = str | int | float
"""A value of a column."""

FILLED: Mapping[str, Value] = {
    "licence": "",
    "licence_basis": "",
    "language": "",
    "language_own": "",
    "language_own_score": 0.0,
    "language_other": "",
    "language_other_score": 0.0,
    "quality_basis": "",
    "toxicity": UNSCORED,
    "quality": UNSCORED,
    **{f"pii_{kind}": 0 for kind in PII_KINDS},
}
"""Columns of every ledger that filters fill, with the value of a row that none has filled."""


@dataclass(frozen=True, kw_only=True)
class FilterDocument:
    """A document as a corpus filter reads it.

    text                 as the filters before have left it: extracted; behind `pii` without personal data
    document_id, url, host, source, licence, language, date, path   as in the ledger so far
    toxicity, quality    scores of the classifiers, -1 without one or before `classifiers`
    given_language       of the input, "" when it has none
    declared_language    of the page, unchecked ("" when none)
    marks, metas         licences in the page's markup; its meta elements, (name, content)
    signals              headers of the response
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
    given_language: str = ""
    declared_language: str = ""
    marks: tuple[LicenceMark, ...] = ()
    metas: tuple[tuple[str, str], ...] = ()
    signals: Signals = field(default_factory=Signals)

    def after(self, result: FilterResult) -> FilterDocument:
        """The document as the next filter reads it; the same object where the result changes nothing of it."""
        changes: dict[str, Any] = {
            name: value
            for name, value in result.columns.items()
            if name in FILTER_COLUMNS and value != getattr(self, name)
        }
        if result.text is not None and result.text != self.text:
            changes["text"] = result.text
        return replace(self, **changes) if changes else self


FILTER_COLUMNS = tuple(f.name for f in fields(FilterDocument) if f.name in COLUMNS)
"""Columns of the ledger that a filter reads."""


@dataclass(frozen=True, kw_only=True)
class FilterResult:
    """The decision of a filter about a document, and the values that it measured.

    drop      detail for the ledger of a dropped document, which may be empty; None keeps it
    reason    of the drop, one of the filter's `reasons`; "": the filter's name
    text      replaces the text of the document; None: unchanged
    columns   values of the filter's columns
    """

    drop: str | None = None
    reason: str = ""
    text: str | None = None
    columns: Mapping[str, Value] = field(default_factory=dict)


@runtime_checkable
class CorpusFilter(Protocol):
    """A corpus filter.

    name   reason in the ledger: lower-case letters, digits and _, at most 40 characters
    """

    name: str

    def __call__(self, document: FilterDocument) -> str | FilterResult | None:
        """None to keep the document, the detail for the ledger to drop it, or a FilterResult.

        The result may depend on the document only: documents are filtered in any order and process.
        """


@runtime_checkable
class PlacedFilter(Protocol):
    """A corpus filter that is applied before a built-in one.

    before   its name, one of BUILT_IN
    """

    before: str


@runtime_checkable
class ColumnFilter(Protocol):
    """A corpus filter with columns in the ledger.

    columns   name -> value of a row that the filter did not fill; its type is the column's. New ones, or of
              FILLED
    """

    columns: Mapping[str, Value]


@runtime_checkable
class ReasonsFilter(Protocol):
    """A corpus filter with reasons beside its name; those of built-in filters may be among them."""

    reasons: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LoadedFilter:
    """A corpus filter with what it declares.

    reference   that names it; "" for a built-in filter
    before      the built-in filter that it precedes; "": behind all
    """

    name: str
    reference: str
    function: CorpusFilter
    before: str
    columns: Mapping[str, Value]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, function: CorpusFilter, reference: str = "") -> LoadedFilter:
        """The filter, unchecked."""
        return cls(
            name=function.name,
            reference=reference,
            function=function,
            before=(isinstance(function, PlacedFilter) and function.before) or "",
            columns=(isinstance(function, ColumnFilter) and function.columns) or {},
            reasons=tuple((isinstance(function, ReasonsFilter) and function.reasons) or ()),
        )

    def apply(self, document: FilterDocument) -> FilterResult:
        """The result with its reason; a user's detail is printable and of at most 200 characters.

        Raises   DataError that names filter, document and line where a user's filter raises an
                 exception, or returns something else.
        """
        try:
            result = self.function(document)
        except Exception as error:
            if not self.reference:
                raise
            raise DataError(
                f"corpus filter {self.name!r} failed on document {document.document_id}: "
                f"{type(error).__name__}: {visible(str(error), LONGEST_DETAIL)}",
                where=self._line(error),
                fix="Correct the filter and run the same command",
            ) from error
        if result is None:
            return UNCHANGED
        if isinstance(result, str):
            result = FilterResult(drop=result)
        if problem := self._problem(result):
            raise DataError(
                f"corpus filter {self.name!r} returned {problem} for document "
                f"{document.document_id}",
                where=self.reference,
                fix="Return None to keep a document, a string to drop it, or a FilterResult",
            )
        if self.reference:
            result = _written(result)
        if result.drop is None:
            return result
        return replace(result, reason=result.reason or self.name)

    def _problem(self, result: object) -> str:
        """The fault of a result; "" for none."""
        if not isinstance(result, FilterResult):
            return type(result).__name__
        if not (result.drop is None or isinstance(result.drop, str)):
            return f"drop = {type(result.drop).__name__}"
        if result.reason and result.reason not in self.reasons:
            return f"the reason {result.reason!r}, which is not one of its reasons"
        if result.text is not None and not (isinstance(result.text, str) and result.text.strip()):
            return "a text that is empty"
        if not isinstance(result.columns, Mapping):
            return f"columns = {type(result.columns).__name__}"
        for name, value in result.columns.items():
            if name not in self.columns:
                return f"the column {name!r}, which is not one of its columns"
            kind = type(self.columns[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                return f"{name} = {type(value).__name__}, a column of {kind.__name__},"
            if fault := _unstorable(value):
                return f"{name} = {fault}"
        return ""

    def _line(self, error: Exception) -> str:
        """The last line of the filter's own file that the exception passed through."""
        file = getattr(sys.modules.get(type(self.function).__module__), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        return f"{file}, line {lines[-1]}" if lines else self.reference


UNCHANGED = FilterResult()
"""The result of a filter that keeps the document, and changes nothing."""


def _written(result: FilterResult) -> FilterResult:
    """A user's result as files can hold it: a printable detail, texts without half of a surrogate pair."""
    columns = {
        name: whole_text(value) if isinstance(value, str) else value
        for name, value in result.columns.items()
    }
    return replace(
        result,
        drop=visible(result.drop, LONGEST_DETAIL) if result.drop else result.drop,
        text=whole_text(result.text) if result.text else result.text,
        columns=columns,
    )


def _unstorable(value: Value) -> str:
    """Description of a value that a column cannot hold; "" for one that it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"a whole number of {value.bit_length()} bits"
    return ""


def load_filters(references: Sequence[str]) -> tuple[LoadedFilter, ...]:
    """The user's filters that `references` name, in order.

    Raises   ConfigError when one cannot be loaded or is not a corpus filter; for a name or column that is
             not usable or used twice, a reason that is not usable, and an unknown place.
    """
    filters_by_name: dict[str, LoadedFilter] = {}
    columns: dict[str, str] = {}
    for reference in references:
        function = load_reference(reference, CorpusFilter, "a corpus filter")
        name = function.name
        if not _is_name(name):
            raise _unusable(reference, f"name = {name!r}, which cannot be a reason of the ledger")
        if name in REASONS or name in filters_by_name:
            other = (
                filters_by_name[name].reference if name in filters_by_name else "a built-in filter"
            )
            conflict = f"name = {name!r}, which is a reason of {other}"
            raise _unusable(reference, conflict, "Give it another name")
        for attribute, (kind, fix) in _KINDS.items():
            value = getattr(function, attribute, None)
            if value is not None and not isinstance(value, kind):
                raise _unusable(reference, f"{attribute} = {value!r}", fix)
        loaded = LoadedFilter.of(function, reference)
        _check_declared(loaded)
        for column in loaded.columns:
            if column not in FILLED and column in columns:
                conflict = f"the column {column!r}, which is one of {columns[column]}"
                raise _unusable(reference, conflict, "Give it another name")
            columns[column] = reference
        filters_by_name[name] = loaded
    return tuple(filters_by_name.values())


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _unusable(reference: str, what: str, fix: str = _FIX_NAME) -> ConfigError:
    return ConfigError(f"{reference} has {what}", where=_WHERE, fix=fix)


def _check_declared(loaded: LoadedFilter) -> None:
    """Raise ConfigError for a place, a reason or a column that a user's filter cannot have."""
    reference, before = loaded.reference, loaded.before
    if before and before not in BUILT_IN:
        unknown = f"before = {before!r}, which is not a built-in filter"
        raise _unusable(reference, unknown, nearest(str(before), BUILT_IN))
    for reason in loaded.reasons:
        if not _is_name(reason):
            raise _unusable(reference, f"the reason {reason!r}, which cannot be one of the ledger")
    for name, value in loaded.columns.items():
        if name not in FILLED and (not _is_name(name) or name in (*COLUMNS, *RESERVED)):
            fix = f"{_FIX_NAME}, and not the name of a column other than {', '.join(FILLED)}"
            raise _unusable(
                reference, f"the column {name!r}, which cannot be one of the ledger's", fix
            )
        kind = type(FILLED.get(name, value))
        if type(value) is not kind or kind not in (str, int, float):
            wanted = kind.__name__ if name in FILLED else "str, int or float"
            other = f"the column {name!r} of {type(value).__name__}, not {wanted}"
            raise _unusable(
                reference, other, "Give the value of a row that the filter did not fill"
            )
        if fault := _unstorable(value):
            unheld = f"the column {name!r} = {fault}, which the ledger cannot hold"
            raise _unusable(reference, unheld, "Give another value, such as -1")


def added_by(filters: Sequence[LoadedFilter]) -> dict[str, Value]:
    """The columns that filters add to the ledger, with the value of a row that is not filled."""
    return {
        name: value
        for loaded in filters
        for name, value in loaded.columns.items()
        if name not in FILLED
    }


def in_order(
    built_in: Sequence[CorpusFilter], own: Sequence[LoadedFilter]
) -> tuple[LoadedFilter, ...]:
    """All filters in the order of their application."""
    by_name = {function.name: LoadedFilter.of(function) for function in built_in}
    ordered: list[LoadedFilter] = []
    for name in BUILT_IN:
        ordered += [loaded for loaded in own if loaded.before == name]
        ordered += [by_name[name]] if name in by_name else []
    return (*ordered, *(loaded for loaded in own if not loaded.before))


def at_absolute_path(reference: str, files: Mapping[str, Path]) -> str:
    """`reference` with its file in `files`, as `code_files` gives them; a module is kept as it is."""
    path, colon, name = (
        (reference, "", "") if reference.endswith(".py") else reference.rpartition(":")
    )
    return f"{files[path]}{colon}{name}" if path.endswith(".py") else reference
