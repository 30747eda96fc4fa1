"""Limits on what one input may cost, and the names of the fields of a document."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from stamm.base.bounds import AtLeastOne, within
from stamm.base.config import Bounded

MemoryGib = Annotated[float, within("[0.125, 1e6]")]


@dataclass(frozen=True, kw_only=True)
class ReadLimits(Bounded):
    """Bounds on what one input may cost. A record beyond them is dropped and counted in the ledger.

    line_bytes       longest line of a JSONL file
    record_bytes     longest body of a WARC record, before and after its content encoding
    expansion        decompressed bytes per compressed byte; the first 64 MiB are free
    html_tags        most tags of a page; extraction takes about 10 microseconds for each
    html_depth       deepest nesting of elements; less in a page of over 20,000 tags, for extraction
                     time grows with the product
    """

    line_bytes: AtLeastOne = 8 * 2**20
    record_bytes: AtLeastOne = 16 * 2**20
    expansion: AtLeastOne = 200
    html_tags: AtLeastOne = 200_000
    html_depth: AtLeastOne = 1000


@dataclass(frozen=True, kw_only=True)
class NamedFields:
    """Names of the fields of rows; a subclass lists the fields.

    "" detects the name among those of public data. A path such as "metadata.url" leads inside. A name
    that is configured and that no row has is an error (`readers.rows.FieldUse`).
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields."""
        return tuple(f.name for f in fields(cls))

    def named(self) -> dict[str, str]:
        """Configured name by field, of those that have one."""
        return {field: name for field, name in vars(self).items() if name}


@dataclass(frozen=True, kw_only=True)
class FieldNames(NamedFields):
    """Names of a document's fields in JSONL and tables.

    Those that are detected are in readers/rows.py: `url`, `metadata.url`, `WARC-Target-URI` … What
    was read is in the manifest of each file. Each file has its own fields.
    """

    text: str = ""
    url: str = ""
    source: str = ""
    licence: str = ""
    language: str = ""
    date: str = ""


FIELDS = FieldNames.names()
