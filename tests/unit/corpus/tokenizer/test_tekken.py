"""Tekken: ranks to merges, Apertus' reserved tokens at their ids, and errors without it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.tokenizer.config import TekkenConfig
from stamm.corpus.tokenizer.tekken import build_description, derive_merges, tekken_description
from stamm.tokenizer.special_tokens import BEGIN_ID, PII_MARKERS, RESERVED_TOKENS
from stamm.tokenizer.tokenizer import Tokenizer

BYTES = [bytes([i]) for i in range(256)]
WORDS = [*BYTES, b"ab", b"bc", b"cd", b"abcd", b" the", b"th", b" t"]
GOOD = [*BYTES, b" t", b"he", b" the", b"in", b"ing", b"\xc3\xa4"]
CONFIG = TekkenConfig(vocab_size=1000 + len(GOOD))


def test_each_word_is_made_of_two_before_it() -> None:
    assert derive_merges(GOOD) == [
        (b" ", b"t"),
        (b"h", b"e"),
        (b" t", b"he"),
        (b"i", b"n"),
        (b"in", b"g"),
        (b"\xc3", b"\xa4"),
    ]
    # With "th" before " t", nothing is left to make " the" of.
    with pytest.raises(DataError, match=r"word 259 .* b' the', is not made of two words before it"):
        derive_merges([*BYTES, b"th", b" t", b"he", b" the"])


def test_a_word_that_skips_a_step_is_reported() -> None:
    with pytest.raises(DataError, match="is not made of two words before it"):
        derive_merges(WORDS)


def test_ids_are_ranks_after_a_thousand_reserved() -> None:
    tokenizer = Tokenizer(build_description(CONFIG, GOOD))
    assert tokenizer.size == 1000 + len(GOOD)
    assert tokenizer.encode(" the thing ä") == [1258, 1256, 1104, 1260, 1032, 1261]
    assert tokenizer.encode(" the thing ä") == tokenizer.encode_slowly(" the thing ä")
    assert tokenizer.fast is not None
    names = json.loads(build_description(CONFIG, GOOD))["added_tokens"]
    assert [token["id"] for token in names] == list(range(1000))
    assert names[73]["content"] == "<SPECIAL_73>" and names[999]["content"] == "<SPECIAL_999>"


def test_apertus_reads_four_latex_beginnings_as_one_token() -> None:
    text = r"\begin{a}\end{a} \text{\boxed{"
    with_latex = Tokenizer(build_description(CONFIG, GOOD))
    ids = with_latex.encode(text)
    assert [i for i in ids if i < 1000] == [14, 15, 16, 17]
    assert with_latex.encode_slowly(text) == ids
    assert with_latex.decode(ids) == text
    plain = Tokenizer(
        build_description(TekkenConfig(vocab_size=CONFIG.vocab_size, latex=False), GOOD)
    )
    assert min(plain.encode(text)) >= 1000


def test_reserved_tokens_are_no_text_and_markers_are() -> None:
    tokenizer = Tokenizer(build_description(CONFIG, GOOD))
    for name in (*RESERVED_TOKENS, "<SPECIAL_999>"):
        ids = tokenizer.encode(f"a{name}b")
        assert tokenizer.decode(ids) == f"a{name}b"
        assert tokenizer.encode_slowly(f"a{name}b") == ids
        assert (min(ids) < 1000) == (name in PII_MARKERS.values())
    assert tokenizer.encode_document("in") == [BEGIN_ID, 1259, 2]


def test_too_few_words_are_reported() -> None:
    with pytest.raises(DataError, match="tekken has 262 words, fewer than 300"):
        build_description(TekkenConfig(vocab_size=1300), GOOD)
    with pytest.raises(ConfigError, match=r"vocab_size = 1256 must lie in \[1257, 151000\]"):
        TekkenConfig(vocab_size=1256)


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"not installed.*pip install --no-deps mistral-common==1"):
        tekken_description(TekkenConfig())
    monkeypatch.undo()
    (tmp_path / "mistral_common" / "data").mkdir(parents=True)
    (tmp_path / "mistral_common" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mistral_common", raising=False)
    with pytest.raises(DataError, match=r"tekken_240718\.json cannot be read"):
        tekken_description(TekkenConfig())
    (tmp_path / "mistral_common" / "data" / "tekken_240718.json").write_text("{}")
    with pytest.raises(DataError, match="is not the tekken that Apertus uses: its SHA-256 is 44"):
        tekken_description(TekkenConfig())


def test_the_configuration_survives_as_plain_values() -> None:
    config = override(TekkenConfig(), ["latex=false", "vocab_size=50000"])
    assert from_plain(TekkenConfig, to_plain(config)) == config


@pytest.mark.skipif(
    importlib.util.find_spec("mistral_common") is None, reason="mistral-common is not installed"
)
def test_tekken_itself() -> None:
    tokenizer = Tokenizer(tekken_description(TekkenConfig()))
    assert tokenizer.size == 131_072
    assert tokenizer.fast is not None
