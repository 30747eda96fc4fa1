"""A key with two values is an error in every JSON text, at every depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.base.json_text import RepeatedKeyError, parse_json
from stamm.base.schema import read_objects
from stamm.chat.conversation import read_tools
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.tokenizer import Tokenizer

TWICE = '{"model": {"type": "BPE", "type": "WordPiece"}}'


def test_values_are_those_of_the_standard_library() -> None:
    for text in ('{"a": [1, {"b": null}], "c": -2.5e3}', "[]", '"ü"', b"true", "{}"):
        assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'])
def test_a_key_with_two_values_is_refused_by_name(text: str) -> None:
    with pytest.raises(RepeatedKeyError, match="two values for the key 'a'"):
        parse_json(text)


@pytest.mark.parametrize(
    "read",
    [
        read_json,
        lambda path: list(read_objects(path)),
        lambda path: Tokenizer(path.read_text()),
        lambda path: ImportedTokenizer(path.read_text()),
        lambda path: read_tools(path.read_text()),
    ],
)
def test_readers_of_files_refuse_it(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(TWICE + "\n")
    with pytest.raises(DataError, match="two values for the key 'type'"):
        read(path)
