"""Exact duplicates: documents whose text is the same but for case, blanks and spelling of forms."""

from __future__ import annotations

import hashlib

from stamm.corpus.duplicates.words import folded


def text_key(text: str) -> bytes:
    """128 bits that two texts share when they are the same after normalisation.

    NFKC, case folded (`words.folded`), every run of blanks one space, none at the ends.
    """
    return hashlib.sha256(" ".join(folded(text).split()).encode()).digest()[:16]
