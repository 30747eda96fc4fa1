"""Training of the language model: the same bytes twice, and a verifiable card."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.corpus.language import ngrams
from stamm.corpus.language.config import LanguageConfig, LanguageTrainConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.language.samples import collect_texts, cut_samples
from stamm.corpus.language.train import train
from stamm.runs.job import Workspace

SYLLABLES = {"aaa_Latn": ("ka", "lo", "mi", "tu"), "bbb_Latn": ("zer", "wyx", "qop", "hjk")}


def _invented(tag: str, seed: int, words: int = 400) -> str:
    """A text in a language that is two syllables to a word, spelled by a counter."""
    parts = SYLLABLES[tag]
    numbers = [(seed * 7919 + n * n * 31 + n * 17) % 16 for n in range(words)]
    text = [parts[n // 4] + parts[n % 4] for n in numbers]
    return "\n".join(" ".join(text[at : at + 20]) for at in range(0, words, 20))


@pytest.fixture
def inputs(tmp_path: Path) -> str:
    path = tmp_path / "in.jsonl"
    rows = [
        {"text": _invented(tag, seed), "language": tag} for tag in SYLLABLES for seed in range(5)
    ]
    rows.append({"text": "no language is named here", "language": "und_Latn"})
    rows.append({"text": "far too little", "language": "ccc_Latn"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _config(inputs: str) -> LanguageTrainConfig:
    return LanguageTrainConfig(
        inputs=(inputs,),
        min_letters=500,
        buckets=2000,
        dimensions=2,
        min_word_count=2,
        epochs=3,
        learning_rate=0.5,
    )


def test_train_twice_gives_the_same_bytes_and_a_model_that_works(
    inputs: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        train(_config(inputs), Workspace(folder=tmp_path / name))
    one, two = tmp_path / "one", tmp_path / "two"
    assert (one / "languages.ftz").read_bytes() == (two / "languages.ftz").read_bytes()
    assert sorted(path.name for path in one.iterdir()) == ["languages.ftz", "languages.json"]
    card = json.loads((one / "languages.json").read_text())
    assert card["sha256"] == sha256_file(one / "languages.ftz")
    assert sorted(card["languages"]) == ["aaa_Latn", "bbb_Latn"]
    assert card["held_out_right"] == 1.0
    identifier = LanguageIdentifier(LanguageConfig(model=str(one / "languages.ftz")))
    for tag in SYLLABLES:
        assert identifier.identify(_invented(tag, 99, 40)).own == tag


def test_nothing_is_learned_and_measured_at_once(inputs: str) -> None:
    texts = collect_texts(_config(inputs))
    assert sorted(texts) == ["aaa_Latn", "bbb_Latn", "ccc_Latn"]
    for each in texts.values():
        assert not set(each.train) & set(each.held_out)


@contextlib.contextmanager
def _memory_filled_with(byte: int) -> Iterator[None]:
    """New memory of this process holds this byte: 0xFE makes numbers of -1.7e38 of it."""
    ctypes.CDLL(None).mallopt(-6, 255 - byte)
    try:
        yield
    finally:
        ctypes.CDLL(None).mallopt(-6, 0)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no allocator of glibc")
def test_what_memory_held_before_changes_nothing(inputs: str, tmp_path: Path) -> None:
    models = []
    for byte in (0, 0xFE, 0x55):
        (tmp_path / str(byte)).mkdir()
        with _memory_filled_with(byte):
            train(_config(inputs), Workspace(folder=tmp_path / str(byte)))
        models.append((tmp_path / str(byte) / "languages.ftz").read_bytes())
    assert models[1:] == models[:1] * 2


def test_an_allocator_that_cannot_clear_is_refused(
    inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "_ALL_ONES", 1)  # fills with 0xFE, as a stranger might
    with pytest.raises(DataError, match="memory cannot be cleared here"):
        train(_config(inputs), Workspace(folder=tmp_path))


def test_one_language_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"text": _invented("aaa_Latn", 1), "language": "aaa_Latn"}) + "\n")
    with pytest.raises(DataError, match="1 languages have 500 letters"):
        train(_config(str(path)), Workspace(folder=tmp_path))


def test_cut_keeps_every_word_once_a_pass() -> None:
    lines = [f"word{number} andmore{number}" for number in range(200)]
    once = list(cut_samples(lines, (30, 60), 0))
    assert " ".join(once).split() == " ".join(lines).split()
    twice = list(cut_samples(lines, (30, 60), 10**6))
    assert len(" ".join(twice).split()) == 2 * len(" ".join(lines).split())


def test_untranslated_english_is_left_out(tmp_path: Path) -> None:
    german = "Die Katze schläft auf dem warmen Ofen und träumt von einem großen Fisch."
    english = "This paragraph was never translated and it still stands here in plain English."
    path = tmp_path / "mixed.jsonl"
    row = {"text": f"{german}\n{english}", "language": "deu_Latn"}
    path.write_text(json.dumps(row) + "\n")
    (texts,) = collect_texts(_config(str(path))).values()
    kept = " ".join(texts.train + texts.held_out)
    assert "katze" in kept
    assert "translated" not in kept
