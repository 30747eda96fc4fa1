"""Fast encoding by tiktoken, several times faster than the tokenizers library, with the same ids.

The tokenizers library merges the pair that is first in its list of merges; tiktoken merges any two
neighbours whose bytes together are a token, the lowest id first. The two agree on every text if
each token is made by exactly one merge, merges are in the order of the ids they make, and the
merges turn the bytes of each token into that token. Proof: let x and y be neighbours in a text and
xy a token. No merge has crossed their boundaries, so the merges between these are those of the
bytes of xy alone; these end in xy, so the last one is (x, y). So each neighbouring pair that is a
token is also a merge, with the same rank in both orders; among equals both take the leftmost.
`fast_encoder` checks the three conditions and returns None where one fails.

Both libraries split texts by the same pattern, but each has its own Unicode tables, so a text with a
character that is not in Python's tables is encoded by the tokenizers library.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import tiktoken

# tiktoken panics on runs of blanks near 10^6, for its lookahead stores one position for each;
# 3 * 10^5 were fine.
_LONGEST_BLANK = 100_000
_BLANKS = re.compile(r"\s+")
_UNKNOWN_KINDS = ("Cn", "Cs")


class FastEncoder:
    """Encodes texts by tiktoken, those for which `can_encode` holds."""

    def __init__(self, pattern: str, ranks: dict[bytes, int], in_text: dict[str, int]) -> None:
        self._encoding = tiktoken.Encoding(
            "stamm", pat_str=pattern, mergeable_ranks=ranks, special_tokens=in_text
        )
        self._in_text = frozenset(in_text)
        self._known: set[str] = set()

    def can_encode(self, text: str) -> bool:
        """Whether `encode` is exact: no long run of blanks, no character unknown to Python."""
        if not text.isascii():
            new = set(text) - self._known
            if any(unicodedata.category(c) in _UNKNOWN_KINDS for c in new):
                return False
            self._known |= new
        return len(text) <= _LONGEST_BLANK or all(
            blank.end() - blank.start() <= _LONGEST_BLANK for blank in _BLANKS.finditer(text)
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text for which `can_encode` holds."""
        ids: list[int] = self._encoding.encode(
            text, allowed_special=self._in_text, disallowed_special=()
        )
        return ids


def fast_encoder(
    plain: Mapping[str, Any], pieces: Callable[[str], list[int]]
) -> FastEncoder | None:
    """The fast encoder of a tokenizer.json, None where equal ids are not proven.

    plain    content of the file
    pieces   returns the ids of a word in the byte alphabet by the merges alone
    """
    model = plain["model"]
    pattern = _pattern(plain)
    is_plain_bpe = model.get("type") == "BPE" and not any(
        model.get(name) for name in _COMPLICATIONS
    )
    if pattern is None or not is_plain_bpe or plain.get("normalizer") is not None:
        return None
    added = {token["content"]: token for token in plain["added_tokens"]}
    words = {word: i for word, i in model["vocab"].items() if word not in added}
    made = [words.get(first + second, -1) for first, second in map(_pair, model["merges"])]
    ordered = all(a < b for a, b in zip([-1, *made], made, strict=False))
    complete = len(words) == 256 + len(made) and all(c in words for c in BYTE_LETTERS)
    if not ordered or not complete or any(pieces(word) != [i] for word, i in words.items()):
        return None
    in_text = {name: token["id"] for name, token in added.items() if not token["special"]}
    if any(_alters_matching(added[name]) for name in in_text):
        return None
    return FastEncoder(pattern, {word_bytes(word): i for word, i in words.items()}, in_text)


def word_bytes(word: str) -> bytes:
    """Decode a word of the byte alphabet to bytes."""
    return bytes(_BYTE_OF[letter] for letter in word)


def bytes_word(value: bytes) -> str:
    """Encode bytes in the byte alphabet. Inverse of `word_bytes`."""
    return "".join(BYTE_LETTERS[byte] for byte in value)


def _byte_letters() -> str:
    """The letter of each byte: itself where it is visible in Latin-1, else from U+0100 on.

    Source   the byte-level alphabet of GPT-2, used by every byte-level tokenizer.json
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
    """The pre-tokenization pattern, None when it is not in the form of `training`."""
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


def _alters_matching(token: Mapping[str, Any]) -> bool:
    """Whether an added token strips blanks beside it, or only matches between blanks."""
    return any(token.get(name) for name in ("single_word", "lstrip", "rstrip", "normalized"))
