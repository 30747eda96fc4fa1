"""Tokenizers of other models: control tokens come from their ids alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes, write_json
from stamm.tokenizer.imported import ImportedTokenizer, read_tokenizer_config
from tests.unit.chat.imported_folders import CHATML_TOKENS, THINK_TOKENS, description

PLAIN = description(False)


def test_control_tokens_in_a_text_stay_text() -> None:
    tokenizer = ImportedTokenizer(PLAIN, "<think></think>")
    text = "".join((*CHATML_TOKENS, *THINK_TOKENS)) + " Grüezi 🦊"
    ids = tokenizer.encode(text)
    assert not [each for each in ids if tokenizer.control_token(each)]
    assert tokenizer.decode(ids) == text
    rendered = tokenizer.encode_rendered(text)
    names = [name for each in rendered if (name := tokenizer.control_token(each))]
    assert names == [*CHATML_TOKENS, *THINK_TOKENS]
    assert tokenizer.encode(text) == ids


def test_added_tokens_that_no_template_writes_are_text() -> None:
    tokenizer = ImportedTokenizer(PLAIN, "no thoughts")
    assert len(tokenizer.encode("<think>")) == 1
    with pytest.raises(KeyError):
        tokenizer.control_id("<think>")


def test_spans_size_and_hash() -> None:
    tokenizer = ImportedTokenizer(PLAIN)
    ids, spans = tokenizer.encode_with_spans("The mill é")
    assert "".join("The mill é"[a:b] for a, b in dict.fromkeys(spans)) == "The mill é"
    assert len(ids) == len(spans)
    assert tokenizer.size == 1 + max(tokenizer.encode_rendered("</think>"))
    assert tokenizer.sha256 == sha256_bytes(PLAIN.encode())


def test_a_control_token_of_the_plain_vocabulary_is_refused() -> None:
    plain = json.loads(PLAIN)
    letter = next(t for t in plain["model"]["vocab"] if t == "T")
    plain["added_tokens"].append(
        {**plain["added_tokens"][0], "content": letter, "id": plain["model"]["vocab"][letter]}
    )
    with pytest.raises(DataError, match="encodes 'T' in a text as a control token"):
        ImportedTokenizer(json.dumps(plain))


def test_the_map_of_special_tokens_agrees_with_the_configuration(tmp_path: Path) -> None:
    """What transformers reads of the two files, where it reads the map: a missing token is the map's."""
    assert read_tokenizer_config(tmp_path) == {}
    config = {"bos_token": {"content": "<s>"}, "eos_token": None, "add_bos_token": True}
    write_json(tmp_path / "tokenizer_config.json", config)
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": []}
    write_json(tmp_path / "special_tokens_map.json", named)
    assert read_tokenizer_config(tmp_path) == {**config, "eos_token": "</s>"}
    write_json(tmp_path / "special_tokens_map.json", {**named, "bos_token": "<|im_start|>"})
    with pytest.raises(
        DataError, match=r"bos_token = '<s>' in .*'<\|im_start\|>' in special_tokens_map"
    ):
        read_tokenizer_config(tmp_path)
    (tmp_path / "tokenizer.json").write_text(PLAIN)
    with pytest.raises(DataError, match="special_tokens_map"):
        ImportedTokenizer.load(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", ["<s>"])
    with pytest.raises(DataError, match="not a JSON object"):
        read_tokenizer_config(tmp_path)


def test_what_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        ImportedTokenizer.load(tmp_path)
    for text in ("[]", '{"added_tokens": 3}', '{"model": {"type": "none"}}', "\x00"):
        with pytest.raises(DataError, match="not a tokenizer"):
            ImportedTokenizer(text)
    with pytest.raises(DataError, match="lone surrogate"):
        ImportedTokenizer(PLAIN).encode("\ud800")
