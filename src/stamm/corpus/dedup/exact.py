"""Exact duplicates: documents whose text is the same but for case, blanks and spelling of forms."""

from __future__ import annotations

import hashlib

from stamm.corpus.dedup.shingles import normalize_text


def text_key(text: str) -> bytes:
    """128 bits that two texts share when they are the same after normalisation.

    NFKC, case folded (`words.folded`), every run of blanks one space, none at the ends.

    Edge     lone surrogates count as what they are; nothing stored holds any.
    Checked  tests/unit/corpus/dedup/test_exact.py
    """
    shown = " ".join(normalize_text(text).split())
    return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest()[:16]
