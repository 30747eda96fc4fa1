"""Requests for deletion: addresses and hashes, one a line.

A line is an address (https://…), a document's identifier (32 hexadecimal digits, as in the ledger),
or "sha256:" with the SHA-256 of an address as it was published, for who does not want to write it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stamm.base.errors import DataError, visible
from stamm.corpus.records import ID_DIGITS, LONGEST_FIELD, clean_field

_IDENTIFIER = re.compile(rf"[0-9a-f]{{{ID_DIGITS}}}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_LONGEST_LINE = 2 * LONGEST_FIELD
_MOST_BYTES = 2**30


class Deletions:
    """What was asked to be deleted, and where that is written.

    hashes        SHA-256 of an address -> the rule that names its line
    identifiers   document_id -> the rule
    """

    def __init__(self, hashes: Mapping[str, str], identifiers: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)
        self._identifiers = dict(identifiers)

    @classmethod
    def joined(cls, several: Iterable[Deletions]) -> Deletions:
        """All requests of several lists; the first list that names a document is told."""
        hashes: dict[str, str] = {}
        identifiers: dict[str, str] = {}
        for one in several:
            hashes = one._hashes | hashes
            identifiers = one._identifiers | identifiers
        return cls(hashes, identifiers)

    def rule(self, url: str, document_id: str) -> str:
        """The line that asks for the deletion of a document, "" when none does."""
        found = self._identifiers.get(document_id)
        if found is None and url and self._hashes:
            found = self._hashes.get(_hashed(url))
        return found or ""


def read_deletions(path: Path) -> Deletions:
    """The requests in a file. Blank lines and lines that begin with "#" do not count.

    Raises   DataError for a line that is none of the three: a request must not be passed over.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is larger than 1 GiB", fix="Split it")
    hashes: dict[str, str] = {}
    identifiers: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}", fix="Write it as UTF-8") from None
    for number, written in enumerate(text.splitlines(), start=1):
        line = written.strip()
        if not line or line.startswith("#"):
            continue
        rule = f"{path.name}, line {number}"
        digest = _HASH.fullmatch(line.lower())
        if digest:
            hashes.setdefault(digest[1], rule)
        elif _IDENTIFIER.fullmatch(line.lower()):
            identifiers.setdefault(line.lower(), rule)
        elif "://" in line and len(line) <= _LONGEST_LINE:
            # The ledger holds addresses without invisible characters.
            for spelling in (line, clean_field(line)):
                hashes.setdefault(_hashed(spelling), rule)
        else:
            raise DataError(
                f"{visible(line, 80)!r} is no request for deletion",
                where=f"{path}, line {number}",
                fix="Write an address, a document_id of the ledger, or sha256: and 64 digits",
            )
    return Deletions(hashes, identifiers)


def _hashed(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
