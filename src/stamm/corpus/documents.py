"""Records that the readers yield: an input document, or the reason why it cannot be read."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

# A metadata field is a name or a URL; a longer one is an attack on the program that prints it.
LONGEST_FIELD = 4096
ID_DIGITS = 32
OPT_OUT_FIELD = "field of the row"
"""Name of a signal for a field of a row that opts the document out; no HTTP header has blanks."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Position of a record in the input.

    file      as in the configuration
    position  line number of a JSONL, record number of a WARC, both from 1
    """

    file: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Headers of an HTTP response, which may contain opt-out signals.

    headers   lower-case name and value, in order; opt-outs of a row of JSONL or a table, too
    """

    headers: tuple[tuple[str, str], ...] = ()

    def values(self, name: str) -> tuple[str, ...]:
        """The values of one header, in order; `name` in lower case."""
        return tuple(value for key, value in self.headers if key == name)


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """One input document: text, or HTML from which it is extracted.

    content_id   SHA-256 of URL and content, its first 32 hexadecimal digits
    content      text as UTF-8, or the body of the response
    path         of the file inside a repository, "" elsewhere
    licence_basis  source of the licence; "" with a licence: the input's own field
    charset      encoding that the response declares for HTML; None when `content` is text
    is_html      whether text must still be extracted
    address_field  of a row without an address: a field that should have it, or looks like one
    """

    place: Place
    content_id: str
    content: bytes
    url: str = ""
    source: str = ""
    path: str = ""
    licence: str = ""
    licence_basis: str = ""
    language: str = ""
    date: str = ""
    is_html: bool = False
    charset: str | None = None
    signals: Signals = Signals()
    address_field: str = ""


@dataclass(frozen=True, kw_only=True)
class UnreadableRecord:
    """A record that could not be read.

    reason   one of the ledger's reasons
    detail   description of the defect
    size     its bytes in the input, as far as known
    """

    place: Place
    content_id: str
    reason: str
    detail: str
    size: int
    url: str = ""
    path: str = ""


def unread_rest(name: str, position: int, reason: str, detail: str, what: str) -> UnreadableRecord:
    """The record for the rest of a file that cannot be read, from `position` on.

    what   its parts: lines, rows
    """
    return UnreadableRecord(
        place=Place(file=name, position=position),
        content_id=content_id(name, detail.encode()),
        reason=reason,
        detail=f"{detail}; {what} from {position} on are lost",
        size=0,
    )


def content_id(url: str, content: bytes) -> str:
    """The identifier of a document: a function of URL and bytes."""
    digest = hashlib.sha256(url.encode("utf-8", "surrogatepass") + b"\0" + content)
    return digest.hexdigest()[:ID_DIGITS]


def clean_field(text: str) -> str:
    """A metadata field cut at 4,096 characters, without control and direction characters."""
    cut = text[:LONGEST_FIELD]
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(c for c in cut if unicodedata.category(c) not in ("Cc", "Cf", "Cs")).strip()


def whole_text(text: str) -> str:
    """`text` with half of a surrogate pair, which no file can hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
