"""The same ids, several times faster: the vocabulary's merges run by tiktoken.

The tokenizers library merges the pair that stands first in its list of merges; tiktoken merges any
two neighbours whose bytes together are a token, the lowest id first. The two agree on every text
if each token is made by exactly one merge, merges stand in the order of the ids they make, and the
merges turn each token's own bytes into that token. For say that x and y are neighbours in a text
and xy is a token. No merge has crossed their borders, so what happened between these borders is
what happens to the bytes of xy alone; that ends in xy, hence its last merge is (x, y). So each
neighbouring pair that is a token is also a merge, with the same place in both orders; among equals
both take the leftmost. `fast_encoder` checks the three conditions and gives up where one fails.

What remains is how texts are cut into words. Both libraries have the pattern; each has its own
table of Unicode, so a text with a character that Python's table does not know goes the slow way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import tiktoken

# tiktoken ends with an exception that cannot be caught cleanly on runs of blanks near 10^6:
# its lookahead keeps one place for each. 3 * 10^5 were fine, so this is well inside.
_LONGEST_BLANK = 100_000
_BLANKS = re.compile(r"\s+")
_UNKNOWN_KINDS = ("Cn", "Cs")


class FastEncoder:
    """Texts to ids through tiktoken, for the texts that it `takes`."""

    def __init__(self, pattern: str, ranks: dict[bytes, int], in_text: dict[str, int]) -> None:
        self._encoding = tiktoken.Encoding(
            "stamm", pat_str=pattern, mergeable_ranks=ranks, special_tokens=in_text
        )
        self._in_text = frozenset(in_text)
        self._known: set[str] = set()

    def can_encode(self, text: str) -> bool:
        """Whether `encode` may be asked: no enormous blank, no character newer than our table."""
        if not text.isascii():
            new = set(text) - self._known
            if any(unicodedata.category(c) in _UNKNOWN_KINDS for c in new):
                return False
            self._known |= new
        return len(text) <= _LONGEST_BLANK or all(
            blank.end() - blank.start() <= _LONGEST_BLANK for blank in _BLANKS.finditer(text)
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text that it takes."""
        ids: list[int] = self._encoding.encode(
            text, allowed_special=self._in_text, disallowed_special=()
        )
        return ids


def fast_encoder(
    plain: Mapping[str, Any], pieces: Callable[[str], list[int]]
) -> FastEncoder | None:
    """The quick encoder of a tokenizer.json, None where equal ids are not proven.

    plain    the file's content
    pieces   what the merges alone make of a word in the byte alphabet
    """
    model = plain["model"]
    pattern = _pattern(plain)
    plainly = model.get("type") == "BPE" and not any(model.get(name) for name in _COMPLICATIONS)
    if pattern is None or not plainly or plain.get("normalizer") is not None:
        return None
    added = {token["content"]: token for token in plain["added_tokens"]}
    words = {word: i for word, i in model["vocab"].items() if word not in added}
    made = [words.get(first + second, -1) for first, second in map(_pair, model["merges"])]
    ordered = all(a < b for a, b in zip([-1, *made], made, strict=False))
    complete = len(words) == 256 + len(made) and all(c in words for c in BYTE_LETTERS)
    if not ordered or not complete or any(pieces(word) != [i] for word, i in words.items()):
        return None
    in_text = {name: token["id"] for name, token in added.items() if not token["special"]}
    if any(_bends(added[name]) for name in in_text):
        return None
    return FastEncoder(pattern, {word_bytes(word): i for word, i in words.items()}, in_text)


def word_bytes(word: str) -> bytes:
    """The bytes that a word in the byte alphabet stands for."""
    return bytes(_BYTE_OF[letter] for letter in word)


def bytes_word(value: bytes) -> str:
    """Bytes in the byte alphabet. Inverse of `word_bytes`."""
    return "".join(BYTE_LETTERS[byte] for byte in value)


def _byte_letters() -> str:
    """The letter that stands for each byte: itself where it is visible in Latin-1, else U+0100 on.

    Source   the byte-level alphabet of GPT-2, which every byte-level tokenizer.json is written in
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


BYTE_LETTERS = _byte_letters()
_BYTE_OF = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
_COMPLICATIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)


def _pair(merge: str | list[str]) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _pattern(plain: Mapping[str, Any]) -> str | None:
    """How words are cut, None when it is done otherwise than `training` does it."""
    match plain.get("pre_tokenizer"):
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
        case _:
            return None


def _bends(token: Mapping[str, Any]) -> bool:
    """Whether an added token takes blanks beside it, or only counts between blanks."""
    return any(token.get(name) for name in ("single_word", "lstrip", "rstrip", "normalized"))
