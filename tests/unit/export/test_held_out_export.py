"""Held-out texts of an export: every language has its share, whatever the number of languages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.export.held_out import (
    LONGEST,
    SHORTEST,
    HeldOutText,
    bits_agreement,
    held_out_file,
    held_out_texts,
    token_agreement,
)
from stamm.export.target import LoadedExport


class Split:
    """Two documents of 1,500 tokens in each language."""

    def __init__(self, languages: int) -> None:
        names = [f"l{number:03d}" for number in range(languages)]
        self._rows = [
            {"language": name, "start": 1500 * place, "stop": 1500 * (place + 1)}
            for place, name in enumerate([*names, *names])
        ]

    def documents(self) -> pa.Table:
        """Language, start and stop of each."""
        return pa.Table.from_pylist(self._rows)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens that look mixed."""
        return np.arange(start, stop) % 90 + 10


class Letters:
    """A tokenizer with a token for each character."""

    def encode(self, text: str) -> list[int]:
        """The number of each character."""
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """The characters with these numbers."""
        return "".join(map(chr, tokens))


def agreed(languages: int, most: int) -> Any:
    """Agreement with an engine that gives another id for every sixtieth character."""
    texts = held_out_texts(Split(languages), Letters(), most)  # type: ignore[arg-type]
    engine = LoadedExport(
        description="",
        logits=lambda tokens: tokens,
        encode=lambda text: [-1 if n % 60 == 59 else ord(letter) for n, letter in enumerate(text)],
    )
    return texts, token_agreement(texts, Letters(), engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("languages", "most", "length"),
    [(2, 9000, LONGEST), (70, 16_384, 234), (400, 16_384, SHORTEST)],
)
def test_every_language_is_compared(languages: int, most: int, length: int) -> None:
    texts, found = agreed(languages, most)
    assert len({each.language for each in texts}) == languages
    assert {len(each.tokens) for each in texts} == {length}
    assert len(found) == languages
    for each in found:
        assert each.tokens == each.texts * length
        assert each.differing == each.texts * (length // 60)


class Guess:
    """A model of 8 tokens of context that gives the next number of a count `share`, and 9 others the rest."""

    def __init__(self, share: float) -> None:
        self.config = SimpleNamespace(max_context=8)
        self.share = share
        self.longest = 0

    def __call__(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Logits of the digit that follows."""
        self.longest = max(self.longest, tokens_BT.shape[1])
        shares = torch.full((*tokens_BT.shape, 10), (1 - self.share) / 9)
        shares.scatter_(2, ((tokens_BT + 1) % 10)[..., None], self.share)
        return shares.log()


@pytest.mark.parametrize("count", [2, 7, 8, 9, 15, 16, 40])
def test_every_token_of_a_text_is_in_its_bits_per_byte(count: int) -> None:
    tokens = [number % 10 for number in range(count)]
    texts = [HeldOutText(language="l", tokens=tokens, text="é" * 50)]
    ours, theirs = Guess(0.5), Guess(0.25)
    whole, one = bits_agreement(texts, ours, theirs)  # type: ignore[arg-type]
    assert ours.longest == theirs.longest == min(count, 8)
    assert (whole.language, one.language) == ("", "l")
    for found in (whole, one):
        assert (found.tokens, found.bytes) == (count - 1, 100)
        assert math.isclose(found.original, (count - 1) * 1 / 100, rel_tol=1e-6)
        assert math.isclose(found.exported, (count - 1) * 2 / 100, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("encoding", "begin"), [("utf-8", b"\xef\xbb\xbf"), ("cp1252", b""), ("utf-16", b"")]
)
def test_a_text_file_is_read_as_the_corpus_reads_it(
    tmp_path: Path, encoding: str, begin: bytes
) -> None:
    text = "Die Mühle läuft über Nacht; der Müller schläft.\n" * 2000
    path = tmp_path / "held.txt"
    path.write_bytes(begin + text.encode(encoding))
    tokens = held_out_file(path, Letters(), 3000)  # type: ignore[arg-type]
    read = "".join(
        map(chr, (id for row in tokens.rows for id in tokens.read(row["start"] + 1, row["stop"])))
    )
    assert len(read) >= 3000
    assert text.startswith(read)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "held.bin"
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(DataError, match="a zero byte"):
        held_out_file(path, Letters(), 100)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="is not a file"):
        held_out_file(tmp_path, Letters(), 100)  # type: ignore[arg-type]


def test_rows_without_a_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hello"}]}\n')
    told = r"no text; fields of the file: messages \(export\.held_out, record 1\)\. .* column text"
    with pytest.raises(DataError, match=told):
        held_out_file(path, Letters(), 100)  # type: ignore[arg-type]
