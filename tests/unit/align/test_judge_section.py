"""The page about a judge: findings as sentences, hostile names escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stamm.align.page.judge import judge_section
from stamm.base.errors import DataError
from stamm.base.files import write_json
from stamm.reports.job import write_report
from tests.unit.reports.run_folder import HOSTILE
from tests.unit.reports.test_page import ALLOWED, Page

SHARE = {"right": 30, "ties": 2, "pairs": 36, "low": 0.681, "high": 0.921}
JUDGED: dict[str, Any] = {
    "schema": 1,
    "judge": {"kind": "endpoint", "model": HOSTILE, "top_logprobs": 20, "extra_body": {"a": 1}},
    "identity_sha256": "0" * 64,
    "charter": HOSTILE,
    "charter_sha256": "1" * 64,
    "articles": [1],
    "good_answers_sha256": "2" * 64,
    "chains": 1,
    "steps": [
        {"name": "good answer", "rated": 1, "mean_rating": 8.25},
        {"name": HOSTILE, "rated": 0, "mean_rating": None},
    ],
    "pointwise_adjacent": SHARE,
    "pointwise_all": SHARE,
    "pairwise_all": {**SHARE, "right": 18},
    "first_preferred": 0.625,
    "unrated": {HOSTILE: 3},
    "replies": 10,
    "min_ordered": 0.9,
    "passed": False,
}
RATED: dict[str, Any] = {
    "schema": 1,
    "judge": JUDGED["judge"],
    "identity_sha256": "0" * 64,
    "charter": "Ours",
    "charter_sha256": "1" * 64,
    "articles": {"1": "Help", "2": HOSTILE},
    "input": {"path": "a.jsonl", "sha256": "3" * 64},
    "ratings": {"path": "ratings.jsonl", "sha256": "3" * 64},
    "rewards": {"path": "rewards.jsonl", "sha256": "3" * 64},
    "rows": 20,
    "rated": 18,
    "unrated": {"prose": 2},
    "prompts": 5,
    "lone_prompts": 1,
    "comparisons": 12,
    "article_means": {"1": 6.5, "2": 3.5},
    "replies": 64,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    write_json(root / "config.json", {"schema": 1, "recipe": "align.charter", "config": {}})
    write_json(root / "judge" / "judge.json", JUDGED)
    write_json(root / "charter" / "summary.json", RATED)
    return root


def test_the_findings_are_sentences(run: Path) -> None:
    section = judge_section(run)
    assert section is not None
    text = section.text()
    assert (
        "orders 83.3 % (68.1 % to 92.1 %) of the pairs of degraded answers rightly by its" in text
    )
    assert "and 50.0 % (68.1 % to 92.1 %) by comparisons." in text
    assert "It does not reach the 90 % that this run demands." in text
    assert "gives 62.5 % to the answer presented first" in text
    assert "18 of 20 answers to 5 prompts were rated" in text
    assert "1 prompts have a single rated answer" in text
    assert ("validation", "prose") not in [row[:2] for row in section.tables["unrated"].rows]
    assert ("answers", "prose", "2") in section.tables["unrated"].rows
    assert section.tables["steps"].rows[0] == ("good answer", "8.25", "1")
    assert section.tables["articles"].rows[0] == ("1. Help", "6.50")


def test_the_page_escapes_names_and_has_no_other_section(run: Path) -> None:
    page = write_report(run, run / "report.html").read_text()
    parsed = Page(page)
    assert (parsed.problems, parsed.open) == ([], [])
    assert {tag for tag, _ in parsed.tags} <= ALLOWED
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "68.1 % to 92.1 %" in page
    assert 'id="judge"' in page
    assert 'id="training"' not in page


def test_a_judge_that_was_not_validated_is_said_so(run: Path) -> None:
    (run / "judge" / "judge.json").unlink()
    section = judge_section(run)
    assert section is not None
    assert section.sentences[0].startswith("The judge was not validated")
    assert not section.tables["ordered"].rows
    assert "Validation on degraded answers" not in write_report(run, run / "r.html").read_text()


def test_a_run_without_a_judge_has_no_such_section(run: Path) -> None:
    assert judge_section(run.parent) is None


def test_a_damaged_file_is_named(run: Path) -> None:
    write_json(run / "judge" / "judge.json", {**JUDGED, "pointwise_all": {**SHARE, "right": 99}})
    with pytest.raises(DataError, match=r"judge\.json.*right"):
        judge_section(run)
