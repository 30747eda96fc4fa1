"""A document of another pipeline under stamm's screen, and what is written back into it.

Nothing here knows whose document it is: a text, and a dictionary of what else is known.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.contamination.index import build_index
from stamm.corpus.contamination.items import read_sets
from stamm.corpus.corpus_filter import load_filters
from stamm.corpus.document_filter import Screen, Tools
from stamm.corpus.inputs import expand, locate
from stamm.corpus.language.declared import UNDETERMINED, declared_language
from stamm.corpus.ledger import KEPT, PII_KINDS, LedgerRow
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import replace_pii
from stamm.corpus.readers.jsonl import record_of
from stamm.corpus.records import Place, Record, Unread, whole_text

PREFIX = "stamm_"
"""Before the name of every column that is written into a document."""

_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
# Where a record stands, and what is decided over all documents: one document cannot be told.
_NOT_TOLD = ("input_file", "input_position", "duplicate_of", "split", "probe_id")


class Document(Protocol):
    """What is asked of a document.

    metadata   whatever is known by name; url, language, licence and date are looked for. Written
               into, and made where there is none
    """

    text: str
    metadata: Any


def judge(document: Document, config: FilterConfig) -> str:
    """The ledger's reason for dropping a document, "" when it is kept.

    Its metadata gets the ledger's columns, each name after "stamm_"; the text of a document that
    is kept gets its markers for personal data. A dropped one keeps the text it came with.

    Edge   config.inputs is not read. Only the text is at hand, not the page: robots.txt, lists of
           domains, tdmrep.json and ai.txt are asked, headers and meta elements cannot be.
    """
    screen, words = _screen(config)
    _give_metadata(document)
    row, text = screen.judge(_record(document, config.fields, config.limits), words)
    document.metadata.update(_told(row))
    if row.decision == KEPT:
        document.text = text
    return row.reason


def replace_personal_data(
    document: Document, config: PiiConfig, names: FieldNames
) -> dict[str, int]:
    """How many values of each kind were replaced by markers in the document's text.

    The counts stand in its metadata, too, as stamm_pii_email and so on.

    Edge   a document whose text is no string is left as it is, with counts of 0.
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
    for one in config.contamination.sets if config.contamination else ():
        locate(one.file, "contamination")


def _give_metadata(document: Document) -> None:
    """Some readers leave None where a document says nothing of itself."""
    if document.metadata is None:
        document.metadata = {}


def _record(document: Document, names: FieldNames, limits: ReadLimits) -> Record | Unread:
    metadata = document.metadata
    # Only what is asked for: the rest may be of any size, and its keys of any kind.
    row = {name: metadata[name] for name in names.all() if name in metadata}
    row[names.text] = document.text
    if isinstance(document.text, str):
        row[names.language] = _language(metadata, names, document.text)
    record = record_of(Place(file="", position=0), row, names)
    size = len(record.content) if isinstance(record, Record) else 0
    if isinstance(record, Unread) or size <= limits.line_bytes:
        return record
    return Unread(
        place=record.place,
        content_id=record.content_id,
        reason="line_too_long",
        detail=f"{size} bytes, limit {limits.line_bytes}",
        size=size,
        url=record.url,
    )


def _language(metadata: Mapping[str, Any], names: FieldNames, text: str) -> str:
    """The language as deu_Latn, also of a document that says "de" or "deu"; "" when it is not known."""
    said = metadata.get(names.language)
    if not isinstance(said, str) or not said or _TAG.fullmatch(said):
        return said if isinstance(said, str) else ""
    read = declared_language(said, text)
    return "" if read == UNDETERMINED else read


def _told(row: LedgerRow) -> dict[str, Any]:
    return {PREFIX + name: v for name, v in row.plain().items() if name not in _NOT_TOLD}


@functools.lru_cache(maxsize=8)  # a pipeline may hold several screens, and asks them in turns
def _screen(config: FilterConfig) -> tuple[Screen, ConsentPolicies]:
    """What is built once in a process, when its first document comes, and never sent to another."""
    sets = config.contamination
    index = build_index(sets, read_sets(sets, config.limits)) if sets else None
    toxicity, quality = (
        Path(folder) if folder else None
        for folder in (config.toxicity_classifier, config.quality_classifier)
    )
    tools = Tools.of(config, index, toxicity, quality, config.filters)
    robots = tuple(expand(config.consent.robots, "consent.robots").values())
    domains = expand(config.consent.domains, "consent.domains")
    return Screen(config, tools), load_policies(config.consent, robots, domains, config.limits)
