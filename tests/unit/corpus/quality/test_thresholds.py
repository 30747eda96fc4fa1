"""Reading quality bounds, the fallback by script, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import DataError
from stamm.corpus.quality.rules import RULES, QualityRule, QualityThresholds

ENTRY: dict[str, Any] = {
    "bounds": {"high_top_2": 0.25},
    "stop_words": ["a", "b"],
    "orders": [[1, 0]],
}


def _write(path: Path, plain: Any) -> Path:
    path.write_text(json.dumps(plain))
    return path


def test_fall_back_by_script_then_any(tmp_path: Path) -> None:
    names = ("deu_Latn", "Latn", "any")
    path = _write(tmp_path / "q.json", {"schema": 1, "bounds": dict.fromkeys(names, ENTRY)})
    thresholds = QualityThresholds(path)
    own = thresholds.for_language("deu_Latn")
    assert own is not None and own.basis == "deu_Latn"
    assert own.use.orders == ((1, 0),)
    assert thresholds.for_language("fra_Latn") is None
    assert thresholds.for_script("Latn").basis == "Latn"
    assert thresholds.for_script("Cyrl").basis == thresholds.for_script("").basis == "any"


@pytest.mark.parametrize(
    "plain",
    [
        {"schema": 2, "bounds": {"any": ENTRY}},
        {"schema": 1, "bounds": {"Latn": ENTRY}},
        {"schema": 1, "bounds": {"any": {**ENTRY, "bounds": {"high_nonsense": 1.0}}}},
        {"schema": 1, "bounds": {"any": {**ENTRY, "bounds": {"high_top_2": "much"}}}},
        {"schema": 1, "bounds": {"any": {**ENTRY, "orders": [[0, 2]]}}},
        {"schema": 1, "bounds": {"any": {"bounds": {}}}},
        {"schema": 1, "bounds": []},
        [],
        "bounds",
    ],
)
def test_an_invalid_file_of_bounds_is_refused(tmp_path: Path, plain: Any) -> None:
    with pytest.raises(DataError, match="not a file of quality bounds"):
        QualityThresholds(_write(tmp_path / "q.json", plain))


def test_a_language_loosens_and_never_tightens() -> None:
    high = QualityRule(measure="top_2", is_high=True, published=0.2, loosest=0.4)
    assert [high.as_bound(fitted) for fitted in (0.1, 0.3, 0.9)] == [0.2, 0.3, 0.4]
    low = QualityRule(measure="worded_share", is_high=False, published=0.8, loosest=0.5)
    assert [low.as_bound(fitted) for fitted in (0.9, 0.7, 0.1)] == [0.8, 0.7, 0.5]
    free = QualityRule(measure="mean_word_letters", is_high=True)
    assert free.as_bound(7.5) == 7.5


def test_rule_names_are_unique_and_a_bound_itself_is_kept() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert not RULES[0].breaks(0.0, 0.0)
