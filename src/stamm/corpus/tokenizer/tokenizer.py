"""A vocabulary in use: texts to ids and back.

A document is `<s> text </s>`. What a document says is never a control token: "</s>" in a text is
encoded as four ordinary characters. Only the markers that took the place of personal data, and the
beginnings of LaTeX commands where a vocabulary has them, are read as their one token, wherever
they stand.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes
from stamm.corpus.special_tokens import BEGIN_ID, END_ID, PII_MARKERS, RESERVED_TOKENS
from stamm.corpus.tables import Row
from stamm.corpus.tokenizer.fast import FastEncoder, fast_encoder

FILE = "tokenizer.json"

# Words split where capitals follow small letters, digits one by one, blanks lead their word.
# Source: the pattern of Mistral's tekken, which Apertus keeps (swiss-ai/
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
"""What Apertus reads as one token of a text, in slots that a vocabulary of our own leaves empty.

Source   swiss-ai/apertus-tokenizer-development, apertus_tokenizer_design.md, addendum on version 1
"""

_BATCH = 256
_FIX = "Use a tokenizer made by stamm's tokenizer step"
# Every byte that UTF-8 can hold, and what normalizers and blanks at the ends would lose.
_PROBE = (
    " \t"
    + "".join(map(chr, range(0x800)))
    + "".join(chr(lead << 12 | 0x800) for lead in range(0x10) if lead != 0xD)
    + "".join(chr(plane << 16 | 0xFFFD) for plane in range(1, 0x11))
    + "\ud7ff a  A \n\n "
)


class Tokenizer:
    """Texts to ids and back. `decode(encode(text)) == text` for every text.

    Checked  tests/unit/corpus/test_tokenizer.py
    """

    def __init__(self, description: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(description)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"not a tokenizer: {error}", fix="Run the tokenizer step again"
            ) from None
        for position, name in enumerate(RESERVED_TOKENS):
            known = (name, LATEX_TOKENS.get(position, name))
            if all(self._tokenizer.token_to_id(each) != position for each in known):
                raise DataError(
                    f"the tokenizer has {name} at {self._tokenizer.token_to_id(name)}, "
                    f"not at {position}",
                    fix=_FIX,
                )
        # Control tokens are then not looked for in texts; the markers, which are added tokens
        # but no control tokens, are.
        self._tokenizer.encode_special_tokens = True
        self._description = description
        self.sha256 = sha256_bytes(description.encode())
        self._prove()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer in a tokenizer.json, or in the folder that holds one.

        Raises   DataError when it is missing or not what the tokenizer step writes.
        """
        file = path / FILE if path.is_dir() else path
        try:
            return cls(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{file} cannot be read: {error}", fix="Run the tokenizer step"
            ) from None

    @property
    def size(self) -> int:
        """How many ids there are."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def fast(self) -> FastEncoder | None:
        """The quick way to the same ids, None for a vocabulary of which that is not proven."""
        return fast_encoder(json.loads(self._description), self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""
        if self.fast is not None and self.fast.can_encode(text):
            return self.fast.encode(text)
        return self.encode_slowly(text)

    def encode_slowly(self, text: str) -> list[int]:
        """The ids by the tokenizers library, which says what they are; `encode` gives the same.

        Checked  tests/unit/corpus/tokenizer/test_fast.py
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # the library takes Unicode alone
            raise DataError(
                "a text holds a lone surrogate, half of a character",
                fix="Replace it, as every reader of stamm's does",
            ) from None
        return ids

    def encode_document(self, text: str) -> list[int]:
        """The ids of a document: <s>, its text, </s>."""
        return [BEGIN_ID, *self.encode(text), END_ID]

    def encode_rows(self, rows: Iterable[Row]) -> Iterator[tuple[Row, list[int]]]:
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

    def _prove(self) -> None:
        """Raise DataError where texts would be lost, or could say what only stamm may say."""
        if self.decode(self.encode_slowly(_PROBE)) != _PROBE:
            raise DataError(
                "the tokenizer does not give texts back: bytes are missing, or it changes letters",
                fix=_FIX,
            )
        for position, name in enumerate(RESERVED_TOKENS):
            marker = name in PII_MARKERS.values()
            if (position in self.encode_slowly(name)) != marker:
                said = "no token of" if marker else "a control token in"
                raise DataError(f"the tokenizer reads {name} as {said} a text", fix=_FIX)

    def _pieces(self, word: str) -> list[int]:
        """The ids that the merges alone make of a word in the byte alphabet."""
        return [piece.id for piece in self._tokenizer.model.tokenize(word)]


def finished(plain: Mapping[str, Any]) -> str:
    """A tokenizer.json: markers and LaTeX beginnings are ordinary text, and <s> can be put first.

    plain   the description as the tokenizers library writes it, all added tokens alike
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
