"""Exact deduplication: texts equal up to case, blanks and Unicode normalization."""

from __future__ import annotations

import hashlib

from stamm.corpus.dedup.shingles import normalize_text


def text_key(text: str) -> bytes:
    """A 128-bit hash of the normalized text.

    NFKC, case folded (`shingles.normalize_text`), every run of blanks one space, none at the ends.

    Edge     lone surrogates are hashed as they are; stored texts contain none.
    Checked  tests/unit/corpus/dedup/test_exact.py
    """
    shown = " ".join(normalize_text(text).split())
    return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest()[:16]
