"""The page's part about canaries: every kind in figure and table, nothing where there were none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.audit.page.canary_figures import canary_figures
from stamm.audit.results import read_audited
from stamm.audit.section import sections
from stamm.base.errors import DataError
from stamm.pages.config import ReportConfig
from stamm.pages.figure import Figure
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import HOSTILE, write, write_study
from tests.unit.reports.test_page import ALLOWED, Page

MADE_UP = ("random_characters", "random_words", "secret", "prefixed_words")
BESIDE = dict.fromkeys(("rewrapped", "indented", "prefixed"), "passages")
REPEATS = (0, 1, 4, 16, 32)


def estimate(mean: float, half: float = 0.2) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def kind(name: str, number: int) -> dict[str, Any]:
    beside = {**BESIDE, "prefixed_words": "random_words"}.get(name)
    return {
        "kind": name,
        "beside": beside,
        "skipped": number,
        "candidates": 255 if name in MADE_UP else 0,
        "buckets": [
            {
                "repeats": repeats,
                "passages": 4,
                "extracted": place // 2,
                "rouge_l": estimate(0.1 + 0.1 * place, 0.05),
                "nll_nats": estimate(6.0 - 0.5 * place - 0.1 * number),
                "exact_prefix_tokens": estimate(place),
                "longest_common_span_tokens": estimate(place + 1),
                "minus_control": {"nll_nats": estimate(-0.5 * place)} if repeats else None,
                "exposure_bits": estimate(1.4 + 1.5 * place) if name in MADE_UP else None,
                "minus_exact": {"nll_nats": estimate(0.1, 0.05)} if beside and repeats else None,
            }
            for place, repeats in enumerate(REPEATS)
        ],
    }


def study_with(root: Path, names: tuple[str, ...], **more: Any) -> Path:
    """A study whose first arm was audited for canaries of these kinds."""
    write_study(root)
    path = root / "arms" / "xielu" / "audit" / "memorization.json"
    stored = json.loads(path.read_text())
    canaries = [kind(name, number) for number, name in enumerate(names)]
    write(path, {**stored, "canaries": canaries, **more})
    return root


def figures(root: Path) -> tuple[Figure, ...]:
    run = open_view(root)
    return canary_figures(run, [(arm, read_audited(arm)) for arm in run.arms])


def section_of(root: Path) -> Page:
    """The section of the run's page."""
    (section,) = sections(open_view(root), ReportConfig())
    return Page(section.html)


def test_every_kind_stands_in_figure_and_table(tmp_path: Path) -> None:
    names = (*MADE_UP, *BESIDE)
    root = study_with(tmp_path / "demo", names, skipped=2, withdrawn=3)
    (figure,) = figures(root)
    assert figure.title == "Canaries: xielu"
    assert len(figure.data.rows) == (1 + len(names)) * len(REPEATS)
    table = {row[:2]: row for row in figure.data.rows}
    assert table["random words", "16"][3:5] == ("1", "5.90 [5.70, 6.10]")
    assert table["prefixed words", "16"][7] == "0.100 [0.050, 0.150]"
    assert table["rewrapped", "control"][4:8:3] == ("", "")
    page = section_of(root)
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    for words in (
        "Canaries: xielu",
        "Too short to be measured: 1 random words, 2 secret",
        "xielu: 2 passages were too short to be measured.",
        "3 planted texts were withdrawn from the corpus and are not measured.",
    ):
        assert words in page.text, words


def test_an_audit_without_canaries_has_no_such_figure(tmp_path: Path) -> None:
    root = write_study(tmp_path / "demo")
    assert figures(root) == ()
    text = section_of(root).text
    assert "Canaries:" not in text
    assert "withdrawn from the corpus" not in text


def test_canaries_of_books_alone_have_one_panel(tmp_path: Path) -> None:
    root = study_with(tmp_path / "demo", ("rewrapped",))
    (figure,) = figures(root)
    assert "Exposure, bits" not in figure.svg
    assert section_of(root).problems == []


def test_a_kind_with_a_script_in_its_name_is_text(tmp_path: Path) -> None:
    root = study_with(tmp_path / "demo", (HOSTILE, "secret", f"_{HOSTILE}"))
    page = section_of(root)
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": "many"}, "candidates = 'many' is not a whole number"),
        ({"buckets": 7}, "buckets"),
        ({"kind": None}, "kind"),
    ],
)
def test_a_malformed_kind_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    bad = {**kind("secret", 0), **change}
    root = study_with(tmp_path / "demo", (), canaries=[bad])
    with pytest.raises(DataError, match=message):
        figures(root)
