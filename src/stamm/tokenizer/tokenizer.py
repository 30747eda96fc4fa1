"""The BPE tokenizer: encodes texts to ids and decodes ids to texts.

A document is `<s> text </s>`. Text never encodes to a control token: "</s>" in a text is four
ordinary characters. Only PII markers, and LaTeX commands where a vocabulary has them, are encoded as
one token anywhere in a text.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokenizers

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes
from stamm.base.json_text import parse_json
from stamm.base.receipts import check_file
from stamm.tokenizer.fast import FastEncoder, fast_encoder
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID, PII_MARKERS, RESERVED_TOKENS

FILE = "tokenizer.json"

# Words are split before capitals, digits one by one; a blank belongs to the word after it.
# Source: the pattern of Mistral's tekken, which Apertus uses (swiss-ai/
# apertus-tokenizer-development, apertus_tokenizer_design.md, "Apertus Pretokenization").
SPLIT_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

LATEX_TOKENS: dict[int, str] = {14: r"\begin{", 15: r"\end{", 16: r"\text{", 17: r"\boxed{"}
"""LaTeX commands that are one token in Apertus, at ids that a trained vocabulary leaves unused.

Source   swiss-ai/apertus-tokenizer-development, apertus_tokenizer_design.md, addendum on version 1
"""

_BATCH = 256
_MARKERS = frozenset(PII_MARKERS.values())
_RESERVED_IDS = {token: position for position, token in enumerate(RESERVED_TOKENS)}
_FIX = "Use a tokenizer made by stamm's tokenizer step"
# Every byte of UTF-8, and text that normalizers and stripping would change.
_PROBE = (
    " \t"
    + "".join(map(chr, range(0x800)))
    + "".join(chr(lead << 12 | 0x800) for lead in range(0x10) if lead != 0xD)
    + "".join(chr(plane << 16 | 0xFFFD) for plane in range(1, 0x11))
    + "\ud7ff a  A \n\n "
)


class Tokenizer:
    """Encodes and decodes texts; `decode(encode(text)) == text` for every text.

    Checked  tests/unit/corpus/test_tokenizer.py
    """

    def __init__(self, description: str) -> None:
        try:
            plain = parse_json(description)
            self._tokenizer = tokenizers.Tokenizer.from_str(description)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"not a tokenizer: {error}", fix="Run the tokenizer step again"
            ) from None
        for position, name in enumerate(RESERVED_TOKENS):
            known = (name, LATEX_TOKENS.get(position, name))
            if all(self._tokenizer.token_to_id(alias) != position for alias in known):
                raise DataError(
                    f"the tokenizer has {name} at {self._tokenizer.token_to_id(name)}, "
                    f"not at {position}",
                    fix=_FIX,
                )
        # Control tokens are then not matched in texts; the markers, which are added tokens but not
        # control tokens, are.
        self._tokenizer.encode_special_tokens = True
        self._description = description
        self.sha256 = sha256_bytes(description.encode())
        # The library keeps the words that a thread has encoded until the thread ends.
        with ThreadPoolExecutor(1) as threads:
            threads.submit(self._check, plain).result()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Load a tokenizer.json, or the one in a folder.

        Raises   DataError when it is missing or not in the form of the tokenizer step.
        """
        file = path / FILE if path.is_dir() else path
        check_file(file)
        try:
            return cls(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{file} cannot be read: {error}", fix="Run the tokenizer step"
            ) from None
        except DataError as error:
            raise DataError(error.what, where=str(file), fix=error.fix) from None

    @property
    def size(self) -> int:
        """The vocabulary size."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def fast(self) -> FastEncoder | None:
        """The fast encoder, None for a vocabulary without the proof of equal ids."""
        return fast_encoder(json.loads(self._description), self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""
        if self.fast is not None and self.fast.can_encode(text):
            return self.fast.encode(text)
        return self.encode_slowly(text)

    def encode_slowly(self, text: str) -> list[int]:
        """The ids by the tokenizers library, the reference; `encode` gives the same.

        Checked  tests/unit/tokenizer/test_fast.py
        """
        return list(self._encoding(text).ids)

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the first and last character (exclusive) of each.

        Tokens that are bytes of one character have the same span.
        """
        encoding = self._encoding(text)
        return list(encoding.ids), list(encoding.offsets)

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # the library takes Unicode alone
            raise DataError(
                "a text contains a lone surrogate, half of a character",
                fix="Replace it, as every reader of stamm's does",
            ) from None

    def control_id(self, token: str) -> int:
        """The id of a reserved token, such as "<|user_start|>".

        Raises   KeyError when it is not reserved.
        """
        return _RESERVED_IDS[token]

    def control_token(self, token_id: int) -> str | None:
        """The reserved token of an id; None for an id of text, and for a PII marker."""
        if token_id >= len(RESERVED_TOKENS) or token_id in LATEX_TOKENS:
            return None
        token = RESERVED_TOKENS[token_id]
        return None if token in _MARKERS else token

    def encode_document(self, text: str) -> list[int]:
        """The ids of a document: <s>, its text, </s>."""
        return [BEGIN_ID, *self.encode(text), END_ID]

    def encode_rows(
        self, rows: Iterable[Mapping[str, Any]]
    ) -> Iterator[tuple[Mapping[str, Any], list[int]]]:
        """Each row with `encode_document` of its "text", in order."""
        if self.fast is not None:
            for row in rows:
                yield row, self.encode_document(row["text"])
            return
        remaining = iter(rows)
        while batch := list(itertools.islice(remaining, _BATCH)):
            encodings = self._tokenizer.encode_batch(
                [row["text"] for row in batch], add_special_tokens=False
            )
            for row, encoding in zip(batch, encodings, strict=True):
                yield row, [BEGIN_ID, *encoding.ids, END_ID]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, reserved tokens spelled out. Broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _check(self, plain: Any) -> None:
        """Raise DataError when texts are not restored, or encode to control tokens."""
        # Before the first text: another normalizer or decoder may need any amount of memory.
        decoder = plain.get("decoder") or {}
        own = plain.get("normalizer") is None and decoder.get("type") == "ByteLevel"
        if not own or self.decode(self.encode_slowly(_PROBE)) != _PROBE:
            raise DataError(
                "the tokenizer does not restore texts: bytes are missing, or it changes letters",
                fix=_FIX,
            )
        for position, name in enumerate(RESERVED_TOKENS):
            marker = name in PII_MARKERS.values()
            if (position in self.encode_slowly(name)) != marker:
                wrong = "several tokens" if marker else "a control token"
                raise DataError(f"the tokenizer encodes {name} in a text as {wrong}", fix=_FIX)

    def _pieces(self, word: str) -> list[int]:
        """The ids of a word in the byte alphabet by the merges alone."""
        return [piece.id for piece in self._tokenizer.model.tokenize(word)]


def finalize_description(plain: Mapping[str, Any]) -> str:
    """The final tokenizer.json: markers and LaTeX commands are not special, and <s> can be prepended.

    plain   the description as the tokenizers library writes it
    """
    in_text = {*PII_MARKERS.values(), *LATEX_TOKENS.values()}
    begin = RESERVED_TOKENS[BEGIN_ID]
    first = {"SpecialToken": {"id": begin, "type_id": 0}}
    whole = dict(plain)
    whole["added_tokens"] = [
        {**token, "special": token["content"] not in in_text} for token in plain["added_tokens"]
    ]
    whole["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {begin: {"id": begin, "ids": [BEGIN_ID], "tokens": [begin]}},
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
