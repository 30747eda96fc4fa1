"""What the readers hand on: a document as it came, or the reason why there is none."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

# A metadata field is a name or an address; a longer one is an attack on whoever prints it.
LONGEST_FIELD = 4096
ID_DIGITS = 32


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a record stands.

    file      as named in the configuration
    position  line number of a JSONL, record number of a WARC, both from 1
    """

    file: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What an HTTP response says about its own use.

    headers   lower-case name and value, in order
    """

    headers: tuple[tuple[str, str], ...] = ()

    def values(self, name: str) -> tuple[str, ...]:
        """The values of one header, in order; `name` in lower case."""
        return tuple(value for key, value in self.headers if key == name)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One document as it came: text, or the HTML it has to be extracted from.

    content_id   SHA-256 over address and content, its first 32 hexadecimal digits
    content      text as UTF-8, or the body of the response
    path         of the file inside a repository, "" elsewhere
    licence_basis  what named the licence; "" with a licence: the input's own field
    charset      encoding that the response claims for HTML; None when `content` is text
    is_html      whether text must still be extracted
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


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A record that could not be read.

    reason   one of the ledger's reasons
    detail   what was found, in words
    size     bytes it took in the input, as far as known
    """

    place: Place
    content_id: str
    reason: str
    detail: str
    size: int
    url: str = ""
    path: str = ""


def content_id(url: str, content: bytes) -> str:
    """The identifier of a document: the same address and bytes always give the same one."""
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
