"""The tokenizer.json of another model: encodes texts without its control tokens.

`Tokenizer` is for vocabularies made by stamm, whose reserved ids are fixed; here control tokens are
those that the file marks as special, and others that a chat template writes.

Checked  tests/unit/corpus/tokenizer/test_imported.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes
from stamm.base.receipts import check_file
from stamm.corpus.tokenizer.tokenizer import FILE

_FIX = "Save the tokenizer again with transformers (a fast tokenizer's save_pretrained)"


class ImportedTokenizer:
    """Encodes and decodes texts; a text never becomes a control token.

    description   the content of a tokenizer.json
    template      a chat template: added tokens whose text occurs in it are control tokens too

    Raises   DataError when it is not a tokenizer, or encodes a control token from plain text.
    """

    def __init__(self, description: str, template: str = "") -> None:
        try:
            plain = json.loads(description)
            added = list(plain.get("added_tokens") or ())
            for token in added:
                token["special"] = bool(token["special"] or token["content"] in template)
            plain.update(added_tokens=added, truncation=None, padding=None)
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"not a tokenizer: {str(error)[:500]}", fix=_FIX) from None
        self._ids = {token["content"]: int(token["id"]) for token in added if token["special"]}
        self._names = {number: name for name, number in self._ids.items()}
        self.sha256 = sha256_bytes(description.encode())
        self._check()

    @classmethod
    def load(cls, path: Path, template: str = "") -> ImportedTokenizer:
        """Load a tokenizer.json, or the one in a folder; raises also when it cannot be read."""
        file = path / FILE if path.is_dir() else path
        check_file(file)
        try:
            description = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} cannot be read: {error}", fix=_FIX) from None
        try:
            return cls(description, template)
        except DataError as error:
            raise DataError(error.what, where=str(file), fix=error.fix) from None

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without control tokens."""
        return self.encode_with_spans(text)[0]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the first and last character (exclusive) of each."""
        self._tokenizer.encode_special_tokens = True
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # the library takes Unicode alone
            raise DataError("a text contains a lone surrogate, half of a character") from None
        return list(encoding.ids), list(encoding.offsets)

    def prefix_ids(self) -> list[int]:
        """The ids that tokenizer.json adds to every text, such as <s>; [] where it adds none."""
        ids: list[int] = self._tokenizer.encode("", add_special_tokens=True).ids
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of a text whose control tokens are spelled out, as transformers encodes a template's."""
        self._tokenizer.encode_special_tokens = False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def control_id(self, token: str) -> int:
        """The id of a control token.

        Raises   KeyError when there is none of this text.
        """
        return self._ids[token]

    def has(self, token: str) -> bool:
        """Whether there is a control token of this text."""
        return token in self._ids

    def control_token(self, token_id: int) -> str | None:
        """The control token of an id; None for an id of text."""
        return self._names.get(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out. Broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _check(self) -> None:
        """Raise DataError when the text of a control token is encoded as one."""
        for name, number in self._ids.items():
            if number in self.encode(name):
                raise DataError(
                    f"the tokenizer encodes {name!r} in a text as a control token", fix=_FIX
                )
