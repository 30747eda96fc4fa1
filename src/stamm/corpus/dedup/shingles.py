"""Word hashes, shingles and MinHash signatures of a text in any script; keys of equal texts.

Case, width, Unicode composition, punctuation, blanks and invisible characters are ignored. In
scripts without blanks between words each character counts as a word. The share of equal values of two
signatures estimates the Jaccard similarity of their texts; they are made here because they are stored and
compared over years: the same text gave three different digests in rensa 0.3, 0.4 and 0.5.
"""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import GOLDEN, mix64, splitmix64
from stamm.corpus.dedup.config import DedupConfig

Hashes = NDArray[np.uint64]

# Texts are processed in pieces of this many characters, so that arrays fit the cache and memory
# does not grow with the text.
_PIECE = 1 << 16
_MOST_MARKS = 30
_BLANK, _IGNORED, _BREAK, _LETTER, _SIGN = range(5)
_IN_WORDS = ("L", "M", "N")
# Thai and Lao; Myanmar; Khmer; kana, Bopomofo and Han with their extensions.
# Source: Unicode 16, Blocks.txt, and UAX 14 for scripts of line breaking class SA.
_WITHOUT_BLANKS = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


@dataclass(frozen=True)
class WordHashes:
    """The hashes of the words of one text, in order.

    hashes   64-bit hash of each word
    edges    one more than words: whether anything but blanks of one line precedes each word (the
             last: always). A phrase between two edges is delimited
    """

    hashes: Hashes
    edges: NDArray[np.bool_]


def hash_words(text: str) -> WordHashes:
    """Split `text` into words after NFKC and case folding, and hash them.

    Edge     a word longer than 65,536 characters is cut. Time and memory are linear; the arrays
             take 9 bytes a word.
    Source   our own; a word's hash is the mixed sum of its mixed (character, position) pairs
    Checked  tests/unit/corpus/dedup/test_shingles.py
    """
    parts, edges, edge = [], [], True
    for piece in _pieces(text):
        hashes, before, after = _read(normalize_text(piece))
        if len(hashes):
            before[0] |= edge
            parts.append(hashes)
            edges.append(before)
            edge = after
        else:
            edge |= after
    edges.append(np.ones(1, dtype=np.bool_))
    return WordHashes(np.concatenate([np.empty(0, np.uint64), *parts]), np.concatenate(edges))


def normalize_text(text: str) -> str:
    """`text` in NFKC, case folded.

    Edge     combining marks after 30 in a row (UAX 15, section 13) are dropped, for linear time.
    """
    if text.isascii():
        return text.casefold()
    # Case folding decomposes some letters ("ΐ"), and does not match Turkish "ı" and "I".
    text = unicodedata.normalize("NFKC", _fewer_marks(text)).casefold()
    return unicodedata.normalize("NFKC", text).replace("ı", "i").replace("i\u0307", "i")


def hash_shingles(hashes: Hashes, length: int) -> Hashes:
    """The hash of each shingle of `length` words; shape (words - length + 1,)."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    with np.errstate(over="ignore"):
        keys = np.zeros(count, np.uint64)
        for offset in range(length):
            keys = keys * GOLDEN + hashes[offset : offset + count]
    return mix64(keys)


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        stop = begin + _PIECE
        if stop < len(text):
            blank = max(text.rfind(" ", begin, stop), text.rfind("\n", begin, stop))
            stop = blank if blank > begin else stop
        yield text[begin:stop]
        begin = stop


def _read(text: str) -> tuple[Hashes, NDArray[np.bool_], bool]:
    """Word hashes of a piece, whether an edge precedes each, and whether one ends the piece."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    kinds = _kinds()[codes]
    seen = kinds != _IGNORED
    if not seen.all():
        codes, kinds = codes[seen], kinds[seen]
    at = np.flatnonzero(kinds >= _LETTER)
    breaks = np.cumsum(kinds == _BREAK, dtype=np.int32)
    if not len(at):
        return np.empty(0, np.uint64), np.empty(0, np.bool_), bool(len(breaks) and breaks[-1])
    signs = kinds[at] == _SIGN
    first = np.ones(len(at), np.bool_)
    first[1:] = (np.diff(at) > 1) | signs[1:] | signs[:-1]
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(at)))
    index_in_word = np.arange(len(at)) - np.repeat(starts, sizes)
    letters = codes[at].astype(np.uint64) | (index_in_word.astype(np.uint64) << np.uint64(21))
    hashes = mix64(np.add.reduceat(mix64(letters + GOLDEN), starts))
    # Breaks up to the first character of a word, minus those up to the last of the word before.
    up_to = breaks[at]
    before = up_to[starts].copy()
    before[1:] -= up_to[starts[1:] - 1]
    return hashes, before > 0, bool(breaks[-1] > up_to[-1])


def _fewer_marks(text: str) -> str:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    marks = _marks()[codes]
    if np.count_nonzero(marks) <= _MOST_MARKS:
        return text
    at = np.arange(len(codes))
    is_beyond_limit = at - np.maximum.accumulate(np.where(marks, -1, at)) > _MOST_MARKS
    if not is_beyond_limit.any():
        return text
    return codes[~is_beyond_limit].tobytes().decode("utf-32-le", "surrogatepass")


@functools.cache
def _marks() -> NDArray[np.bool_]:
    """Whether each code point is a combining mark, or decomposes into some, such as U+FF9E."""
    characters = [chr(code) for code in range(0x110000)]
    classes = np.fromiter(map(unicodedata.combining, characters), np.uint8)
    marks = classes.astype(np.bool_)
    for character in filter(unicodedata.decomposition, characters):
        first = unicodedata.normalize("NFKD", character)[0]
        marks[ord(character)] = unicodedata.combining(first) != 0
    return marks


@functools.cache
def _kinds() -> NDArray[np.uint8]:
    """The class of each code point, from Unicode's general categories."""
    kinds = np.full(0x110000, _BREAK, np.uint8)
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category[0] in _IN_WORDS:
            kinds[code] = _LETTER
        elif category == "Cf":
            kinds[code] = _IGNORED
        elif category == "Zs":
            kinds[code] = _BLANK
    kinds[ord("\t")] = _BLANK
    for low, high in _WITHOUT_BLANKS:
        block = kinds[low : high + 1]
        block[block == _LETTER] = _SIGN
    return kinds


def text_key(text: str) -> bytes:
    """A 128-bit hash of the normalized text, every run of blanks one space, none at the ends."""
    shown = " ".join(normalize_text(text).split())
    return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest()[:16]


Signature = NDArray[np.uint32]

# Value of the signature of a text without words; a minimum over a text does not reach it.
EMPTY_VALUE = np.uint32(0xFFFFFFFF)
_BLOCK = 512  # shingles hashed at once; an array of 512 by 112 values fits the L2 cache


def minhash(words: WordHashes, config: DedupConfig) -> Signature:
    """The minimum of each hash over the shingles of a text, shape (hashes,).

    hash_j(shingle) = the upper 32 bits of a_j * shingle + b_j modulo 2^64, a_j odd

    Edge     with fewer words than a shingle has, the text is one shingle. Without words every value is
             EMPTY_VALUE.
    Source   Broder 1997 (min-wise hashing); Dietzfelbinger 1996 (multiply, add and shift)
    Checked  tests/unit/corpus/dedup/test_minhash.py
    """
    factors, offsets = _hashes(config.hashes)
    least = np.full(config.hashes, 2**64 - 1, np.uint64)
    if len(words.hashes):
        runs = hash_shingles(words.hashes, min(config.shingle_words, len(words.hashes)))
        for begin in range(0, len(runs), _BLOCK):
            table = runs[begin : begin + _BLOCK, None] * factors
            table += offsets
            np.minimum(least, table.min(axis=0), out=least)
    return (least >> np.uint64(32)).astype("<u4")


@functools.cache
def _hashes(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    draws = splitmix64(np.arange(2 * count, dtype=np.uint64))
    return draws[:count] | np.uint64(1), draws[count:]
