"""The quality filter with the shipped bounds: clean text passes, planted garbage is dropped with its rule."""

from __future__ import annotations

import json
import random
from importlib import resources

import pytest
import zstandard

from stamm.base.errors import ConfigError
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.quality.rules import QualityFilter

LANGUAGES = ("eng_Latn", "deu_Latn", "fra_Latn", "spa_Latn", "rus_Cyrl")


@pytest.fixture(scope="module")
def quality() -> QualityFilter:
    return QualityFilter(QualityConfig())


@pytest.fixture(scope="module")
def clean() -> dict[str, list[str]]:
    """Documents of some length by language, from the demonstration data."""
    folder = resources.files("stamm.corpus") / "demo_data"
    found: dict[str, list[str]] = {}
    for name in ("novels", "guides", "public", "rights"):
        packed = (folder / f"{name}.jsonl.zst").read_bytes()
        for line in zstandard.ZstdDecompressor().decompressobj().decompress(packed).splitlines():
            row = json.loads(line)
            if len(row["text"]) > 1500:
                found.setdefault(row["language"], []).append(row["text"])
    return found


def test_clean_text_stays(quality: QualityFilter, clean: dict[str, list[str]]) -> None:
    verdicts = [quality.judge(text, tag) for tag, texts in clean.items() for text in texts]
    dropped = [verdict.rule for verdict in verdicts if verdict.rule]
    assert len(verdicts) > 100
    assert len(dropped) <= 0.03 * len(verdicts), dropped


@pytest.mark.parametrize("tag", LANGUAGES)
def test_planted_rubbish_goes(
    quality: QualityFilter, clean: dict[str, list[str]], tag: str
) -> None:
    text = clean[tag][0][:5000]
    words = text.split()
    order = random.Random(7)
    shuffled = order.sample(words, len(words))
    long_words = sorted({word for word in words if len(word) > 5})[:8]
    planted = {
        "repeated lines": "\n".join([line for line in text.splitlines() if line][:3] * 12),
        "keyword spam": " ".join(order.choice(long_words) for _ in range(300)),
        "bullets": "\n".join("- " + " ".join(words[at : at + 3]) for at in range(0, 240, 3)),
        "menu": "\n".join(" ".join(words[at : at + 2]) for at in range(0, 200, 2)),
        "dummy text": f"{text[:600]}\nLorem ipsum dolor sit amet, consectetur.",
        "signs": " ".join("".join(order.choices("!@#$%^&*()ab12", k=6)) for _ in range(200)),
        "shuffled": "\n".join(" ".join(shuffled[at : at + 60]) for at in range(0, 800, 60)),
    }
    if tag == "rus_Cyrl":
        # Without articles a page has too few words of one order to tell it from a shuffled one.
        del planted["shuffled"]
    kept = [name for name, rubbish in planted.items() if not quality.judge(rubbish, tag).rule]
    assert not kept


def test_a_verdict_has_rule_value_bound_and_basis(quality: QualityFilter) -> None:
    line = "The same line stands here again and again."
    verdict = quality.judge("\n".join([line] * 30), "eng_Latn")
    bounds = quality.thresholds.for_language("eng_Latn")
    assert bounds is not None
    assert verdict.basis == "eng_Latn"
    assert verdict.bound == bounds.bounds[verdict.rule]
    assert verdict.value == getattr(verdict.measures, verdict.rule.partition("_")[2])


def test_fall_back_is_by_measured_script(quality: QualityFilter) -> None:
    assert quality.judge("слово и ещё одно слово " * 20, "und").basis == "Cyrl"
    assert quality.judge("ᓄᓇᕗᑦ " * 40, "und").basis == "any"
    assert quality.judge("words of a tongue nobody named " * 20, "qqq_Latn").basis == "Latn"


def test_too_few_words(quality: QualityFilter) -> None:
    for text in ("", "only three words", "\n" * 1000):
        verdict = quality.judge(text, "eng_Latn")
        assert verdict.rule == "too_few_words"
    # Where a letter counts as a word, twice as many are asked for.
    letters = "".join(chr(0x4E00 + 7 * number) for number in range(59))
    assert quality.judge(letters, "cmn_Hani").rule == "too_few_words"
    assert quality.judge(f"{letters}你好", "cmn_Hani").rule != "too_few_words"


def test_skipped_rules_are_not_asked() -> None:
    text = "Lorem ipsum is what printers set when they have no text. " * 2 + "Nobody reads it. " * 9
    assert QualityFilter(QualityConfig()).judge(text, "eng_Latn").rule == "high_lorem_ipsum"
    skipping = QualityFilter(QualityConfig(skip=("high_lorem_ipsum",)))
    assert skipping.judge(text, "eng_Latn").rule != "high_lorem_ipsum"
    with pytest.raises(ConfigError, match="Did you mean 'high_top_2'"):
        QualityFilter(QualityConfig(skip=("high_top_22",)))
