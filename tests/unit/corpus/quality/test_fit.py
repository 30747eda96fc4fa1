"""Fitting of quality bounds: learned words and bounds, and the same result twice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from stamm.base.errors import DataError
from stamm.corpus.quality.config import QualityConfig, QualityFitConfig
from stamm.corpus.quality.fit import _quantile, fit, learn_word_use
from stamm.corpus.quality.rules import QualityFilter
from stamm.runs.job import Workspace

PARTS = ("house", "river", "garden", "morning", "letter", "winter", "mountain", "candle")


def _text(number: int) -> str:
    """Sentences of invented words that put "the" after "of" and never before it."""
    draw = random.Random(number)

    def noun() -> str:
        return draw.choice(PARTS) + draw.choice(PARTS)

    return "\n".join(
        f"{noun()} of the {noun()} {noun()} and {noun()} {noun()} of the {noun()}."
        for _ in range(12)
    )


@pytest.fixture
def inputs(tmp_path: Path) -> str:
    tags = ("eng_Latn", "en")  # one language, in two forms
    rows = [{"text": _text(number), "language": tags[number % 2]} for number in range(80)]
    rows += [{"text": _text(900), "language": "sco_Latn"}, {"text": "x", "language": "und_Latn"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_fit_twice_gives_the_same_bytes_and_bounds_that_keep_the_reference(
    inputs: str, tmp_path: Path
) -> None:
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fit(QualityFitConfig(inputs=(inputs,)), Workspace(folder=tmp_path / name))
        written.append((tmp_path / name / "quality.json").read_bytes())
    assert written[0] == written[1]
    plain = json.loads(written[0])
    assert sorted(plain["bounds"]) == ["Latn", "any", "eng_Latn"]
    assert plain["bounds"]["eng_Latn"]["documents"] == 80
    assert "low_stop_share" not in plain["bounds"]["Latn"]["bounds"]
    quality = QualityFilter(QualityConfig(thresholds=str(tmp_path / "one" / "quality.json")))
    assert not any(quality.judge(_text(number), "eng_Latn").rule for number in range(80))
    reversed_words = " ".join(reversed(_text(5).split()))
    assert quality.judge(reversed_words, "eng_Latn").rule


def test_words_and_their_order() -> None:
    config = QualityFitConfig(inputs=("-",), stop_words=6)
    use = learn_word_use([_text(number) for number in range(40)], "Latn", config)
    assert {"of", "the", "and"} <= set(use.stop_words)
    pairs = {(use.stop_words[a], use.stop_words[b]) for a, b in use.orders}
    assert ("of", "the") in pairs
    assert ("the", "of") not in pairs


def test_words_of_another_script_are_no_stop_words() -> None:
    config = QualityFitConfig(inputs=("-",), stop_words=3)
    use = learn_word_use(["helm install и не в на helm install и не в"] * 9, "Cyrl", config)
    assert sorted(use.stop_words) == ["в", "и", "не"]


def test_weighted_quantile() -> None:
    values, ones = np.array([5.0, 1.0, 3.0, 2.0, 4.0]), np.ones(5)
    assert [_quantile(values, ones, at) for at in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1, 1, 3, 5, 5]
    assert _quantile(values, np.array([6.0, 1, 1, 1, 1]), 0.5) == 5


def test_nothing_to_fit_on_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text('{"text": "words", "language": "und"}\n')
    with pytest.raises(DataError, match="no document to fit"):
        fit(QualityFitConfig(inputs=(str(path),)), Workspace(folder=tmp_path))
