"""Exact duplicates: documents whose text is the same but for case, blanks and spelling of forms."""

from __future__ import annotations

import hashlib
import unicodedata


class Duplicates:
    """Remembers the first document of each text. 16 bytes and an identifier per distinct text."""

    def __init__(self) -> None:
        self._first: dict[bytes, str] = {}

    def first(self, text: str, document_id: str) -> str | None:
        """The document that had this text before, None when `document_id` is the first."""
        key = text_key(text)
        known = self._first.get(key)
        if known is None:
            self._first[key] = document_id
        return known


def text_key(text: str) -> bytes:
    """128 bits that two texts share when they are the same after normalisation.

    NFKC, case folded, every run of blanks one space, none at the ends.
    """
    normal = unicodedata.normalize("NFKC", text).casefold()
    return hashlib.sha256(" ".join(normal.split()).encode()).digest()[:16]
