"""Hashed character n-grams, the features of text classifiers, without a vocabulary.

A text is split into blocks, each block is normalized, and every n-gram of characters is hashed to a
bucket. A classifier scores windows that overlap by half. All of it is integer arithmetic: a text
has the same buckets on every machine, whatever else is scored. (Normalization follows the Unicode
tables of the Python version, to which characters are added.)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import GOLDEN
from stamm.corpus.classifiers.config import FeatureConfig

Buckets = NDArray[np.int64]
BLOCK_CHARACTERS = 8192

_MULTIPLIER = np.uint64(0xD1342543DE82EF95)  # odd, of the rolling hash

# Handles and addresses are metadata: posts have them, books do not. A classifier would learn to
# distinguish the two by them.
_HANDLE = re.compile(r"@\w+")
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
# Soft hyphens, joiners, marks of direction, variation selectors: they hide a word from a filter.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
)
# Normalization sorts a run of combining marks in quadratic time; no language needs a long one. The
# pattern is any long run outside ASCII, letters, blanks, punctuation, symbols and emoji.
_STACKED = re.compile(
    "([^\\w\\s\\x00-\\x7f\u2000-\u20cf\u2100-\u2bff\U0001f000-\U0001faff]{32})"
    "[^\\w\\s\\x00-\\x7f\u2000-\u20cf\u2100-\u2bff\U0001f000-\U0001faff]+"
)
_DIGIT = re.compile(r"\d")


def blocks(text: str) -> Iterator[str]:
    """Split `text` into blocks of at most 8,192 characters, after a blank in the last tenth if any.

    Edge   an empty text gives one empty block: every document has a score.
    """
    start = 0
    while len(text) - start > BLOCK_CHARACTERS:
        stop = start + BLOCK_CHARACTERS
        blank = text.rfind(" ", stop - BLOCK_CHARACTERS // 10, stop)
        stop = stop if blank < 0 else blank + 1
        yield text[start:stop]
        start = stop
    yield text[start:]


def window_starts(length: int, window: int) -> Iterator[int]:
    """Starts of the windows on `length` characters: 0, every half window, and the last at the end."""
    yield from range(0, max(1, length - window), max(1, window // 2))
    if length > window:
        yield length - window


def windows(text: str, config: FeatureConfig) -> Iterator[str]:
    """The windows of the normalized text, in order; windows do not cross blocks."""
    for block in blocks(text):
        normalized = padded_block(block)
        for start in window_starts(len(normalized), config.window_characters):
            yield normalized[start : start + config.window_characters]


def normalize_spelling(text: str) -> str:
    """Normalize a block: NFKC, lower case, digits as 0, single blanks, no invisible characters.

    Handles (@name) and addresses are removed, so that posts and pages do not differ by them.
    Edge   of a run of combining marks only the first 32 count, which keeps the time linear.
    """
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", _STACKED.sub(r"\1", text))).lower()
    if "@" in plain:
        plain = _HANDLE.sub(" ", plain)
    if "://" in plain or "www." in plain:
        plain = _ADDRESS.sub(" ", plain)
    return " ".join(_DIGIT.sub("0", plain).split())


def padded_block(block: str) -> str:
    """The normalized block with a blank on either side; empty when it has no visible characters."""
    normalized = normalize_spelling(block)
    return f" {normalized} " if normalized else ""


def hash_ngrams(normalized: str, config: FeatureConfig) -> list[Buckets]:
    """The bucket of every n-gram of a normalized text, an array for each length, in order.

    hash     n + sum_k code[k] M^(n-1-k) mod 2^64
    bucket   the highest bits of hash * GOLDEN mod 2^64

    Shapes   [len(normalized) - n + 1] for n = min_ngram to max_ngram; [0] where that is not positive.
    Checked  tests/unit/corpus/classifiers/test_classifier_features.py::test_buckets_agree_with_whole_number_arithmetic
    """
    # Lone surrogates, which JSON can contain, are hashed as code points.
    raw = normalized.encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(raw, dtype="<u4").astype(np.uint64)
    shift = np.uint64(64 - config.bucket_bits)
    buckets, rolling = [], codes
    for length in range(1, config.max_ngram + 1):
        if length > 1:
            rolling = rolling[:-1] * _MULTIPLIER + codes[length - 1 :]
        if length >= config.min_ngram:
            mixed = (rolling + np.uint64(length)) * GOLDEN
            buckets.append((mixed >> shift).astype(np.int64))
    return buckets
