"""Training of the language model: the same bytes twice, and a verifiable card."""

from __future__ import annotations

import ctypes
import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.corpus.language import ngrams
from stamm.corpus.language.config import LanguageConfig, LanguageTrainConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.language.ngrams import train_ngrams
from stamm.corpus.language.train import collect_texts, cut_samples, train
from stamm.runs.job import Workspace

ROOT = Path(__file__).parents[4]
SYLLABLES = {"aaa_Latn": ("ka", "lo", "mi", "tu"), "bbb_Latn": ("zer", "wyx", "qop", "hjk")}


needs_mallopt = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs the allocator of glibc"
)


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


@needs_mallopt
def test_what_memory_held_before_changes_nothing(
    inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for byte in (0, 0xFE, 0x55):  # 0xFE makes float32 values of -1.7e38
        (tmp_path / str(byte)).mkdir()
        monkeypatch.setenv("MALLOC_PERTURB_", str(255 - byte))  # of the process that trains
        train(_config(inputs), Workspace(folder=tmp_path / str(byte)))
        models.append((tmp_path / str(byte) / "languages.ftz").read_bytes())
    assert models[1:] == models[:1] * 2


@needs_mallopt
def test_the_allocator_of_this_process_is_left_alone(inputs: str, tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.mallopt(-6, 0xAA)
    try:
        train(_config(inputs), Workspace(folder=tmp_path))
        memory = libc.malloc(4096)
        assert set(ctypes.string_at(memory, 4096)) == {0x55}
        libc.free(memory)
    finally:
        libc.mallopt(-6, 0)


def test_an_allocator_that_cannot_clear_is_refused(
    inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "_ALL_ONES", 1)  # fills with 0xFE, as another allocator might
    files = {"samples": str(tmp_path / "samples.txt"), "target": str(tmp_path / "out.ftz")}
    answer = ngrams.train_here({**files, "config": to_plain(_config(inputs))})
    assert answer["what"].startswith("memory cannot be zeroed here")


def test_an_error_of_the_process_that_trains_is_reported(inputs: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"that trains failed: .*none\.txt cannot be opened"):
        train_ngrams(tmp_path / "none.txt", _config(inputs), tmp_path / "out.ftz")


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


def test_each_supported_python_has_one_packaging_of_fasttext() -> None:
    """Python 3.13 has a wheel of fasttext-numpy2 only; both are the versions that `ngrams` names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = map(Requirement, project["optional-dependencies"]["train"])
    found = [r for r in stated if r.name.startswith("fasttext")]
    packaged = {
        version: [
            requirement.name
            for requirement in found
            if requirement.marker and requirement.marker.evaluate({"python_version": version})
        ]
        for version in ("3.11", "3.12", "3.13")
    }
    older, newer = "fasttext-numpy2-wheel", "fasttext-numpy2"
    assert packaged == {"3.11": [older], "3.12": [older], "3.13": [newer]}
    assert "3.13.9" in SpecifierSet(project["requires-python"])
    assert "3.14.0" not in SpecifierSet(project["requires-python"])
    (installed,) = (r for r in found if r.marker and r.marker.evaluate())
    assert metadata.version(installed.name) in installed.specifier
