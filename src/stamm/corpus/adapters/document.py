"""Document filters for the documents of another pipeline: a text and a dictionary of metadata."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.contamination.index import build_index
from stamm.corpus.contamination.items import read_sets
from stamm.corpus.corpus_filter import load_filters
from stamm.corpus.document_filter import DocumentFilter
from stamm.corpus.documents import InputRecord, Place, UnreadableRecord, whole_text
from stamm.corpus.inputs import expand, locate
from stamm.corpus.language.codes import language_tag
from stamm.corpus.ledger import KEPT, PII_KINDS, LedgerRow
from stamm.corpus.limits import FIELDS, FieldNames, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import replace_pii
from stamm.corpus.readers.rows import is_read, record_of

PREFIX = "stamm_"
"""Prefix of the columns that are written into the metadata."""

# Columns of the position in an input, and of decisions over all documents: unknown here.
_NOT_WRITTEN = ("input_file", "input_position", "duplicate_of", "split", "probe_id")


class Document(Protocol):
    """A document of another pipeline.

    metadata   values by name; url, language, licence and date are read, and the ledger's columns
               written. None is replaced by a dictionary
    """

    text: str
    metadata: Any


def filter_document(document: Document, config: FilterConfig) -> str:
    """The ledger's reason for dropping a document, "" when it is kept.

    Writes the ledger's columns into the metadata with the prefix "stamm_", and replaces personal
    data in the text of a document that is kept. The text of a dropped one is unchanged.

    Edge   config.inputs is not read. Only the text is available, not the page: robots.txt, lists
           of domains, tdmrep.json and ai.txt are checked, headers and meta elements are not.
    """
    document_filter, policies = _document_filter(config)
    _give_metadata(document)
    row, text = document_filter.apply(_record(document, config.fields, config.limits), policies)
    document.metadata.update(_columns(row))
    if row.decision == KEPT:
        document.text = text
    return row.reason


def replace_personal_data(
    document: Document, config: PiiConfig, names: FieldNames
) -> dict[str, int]:
    """Replace personal data in the text by markers; the number of values by kind.

    The counts are also written into the metadata, as stamm_pii_email and so on.

    Edge   a document whose text is not a string is unchanged, with counts of 0.
    """
    _give_metadata(document)
    counts = dict.fromkeys(PII_KINDS, 0)
    if isinstance(document.text, str):
        text = whole_text(document.text)
        cleaned = replace_pii(text, config, _language(document.metadata, names, text))
        document.text = cleaned.text
        counts = {kind: int(getattr(cleaned, kind)) for kind in PII_KINDS}
    document.metadata.update({f"{PREFIX}pii_{kind}": n for kind, n in counts.items()})
    return counts


def check_files(config: FilterConfig) -> None:
    """Check the files that the configuration names.

    Raises   DataError when one is missing; ConfigError for a corpus filter that cannot be loaded.
    """
    load_filters(config.filters)
    expand(config.consent.robots, "consent.robots")
    expand(config.consent.domains, "consent.domains")
    for evaluation_set in config.contamination.sets if config.contamination else ():
        locate(evaluation_set.file, "contamination")


def _give_metadata(document: Document) -> None:
    """Replace metadata None, which some readers set for a document without any, by {}."""
    if document.metadata is None:
        document.metadata = {}


def _record(
    document: Document, names: FieldNames, limits: ReadLimits
) -> InputRecord | UnreadableRecord:
    # Only fields that are read, and objects that may hold an opt-out: the rest may be of any size.
    own = tuple(getattr(names, field).partition(".")[0] for field in FIELDS)
    row: dict[str, Any] = {
        key: value
        for key, value in document.metadata.items()
        if isinstance(key, str) and (key in own or is_read(key) or isinstance(value, dict))
    }
    row[names.text or "text"] = document.text
    record = record_of(Place(file="", position=0), row, names)
    if isinstance(record, InputRecord):
        tag = language_tag(record.language, record.content.decode())
        record = replace(record, language=tag)
    size = len(record.content) if isinstance(record, InputRecord) else 0
    if isinstance(record, UnreadableRecord) or size <= limits.line_bytes:
        return record
    return UnreadableRecord(
        place=record.place,
        content_id=record.content_id,
        reason="line_too_long",
        detail=f"{size} bytes, limit {limits.line_bytes}",
        size=size,
        url=record.url,
    )


def _language(metadata: Mapping[str, Any], names: FieldNames, text: str) -> str:
    """The language as deu_Latn, also where the metadata have "de" or "deu"; "" when unknown."""
    declared = metadata.get(names.language or "language")
    return language_tag(declared, text) if isinstance(declared, str) else ""


def _columns(row: LedgerRow) -> dict[str, Any]:
    return {PREFIX + name: v for name, v in row.plain().items() if name not in _NOT_WRITTEN}


@functools.lru_cache(maxsize=8)  # a pipeline may have several filters and use them in turn
def _document_filter(config: FilterConfig) -> tuple[DocumentFilter, ConsentPolicies]:
    """The filter and policies, built once in a process, when its first document comes."""
    sets = config.contamination
    index = build_index(sets, read_sets(sets, config.limits)) if sets else None
    toxicity, quality = (
        Path(folder) if folder else None
        for folder in (config.toxicity_classifier, config.quality_classifier)
    )
    robots = tuple(expand(config.consent.robots, "consent.robots").values())
    domains = expand(config.consent.domains, "consent.domains")
    return DocumentFilter(config, index, toxicity, quality, config.filters), load_policies(
        config.consent, robots, domains, config.limits
    )
