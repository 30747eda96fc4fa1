"""The measurement of carving over seeds: its lines are those of its plan, and the page has its tables."""

from __future__ import annotations

import sys

import pytest

from bench import carve
from tests.conftest import ROOT

RESULTS = ROOT / "bench" / "results" / "carve.jsonl"


def test_every_committed_line_is_a_planned_measurement() -> None:
    plan = {f"{arm} {seed} {way} {share}" for arm, seed, way, share in carve.planned()}
    keys = [line["key"] for line in carve.read(RESULTS)]
    assert len(set(keys)) == len(keys) and set(keys) <= plan


def test_the_page_has_the_rows_of_the_committed_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["carve", "--tables", str(RESULTS)])
    carve.main()
    rows = dict(line.strip("| ").split(" | ", 1) for line in capsys.readouterr().out.splitlines() if " | " in line)  # fmt: skip
    page = (ROOT / "docs" / "adapt.md").read_text()
    section = page[page.index("### Carving over seeds") :].split("\n## ")[0]
    shown = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if "| " in line]
    assert len(shown) > 10
    for name, cells in shown:
        assert name.startswith("nats per token") or rows[name] == cells, name
    assert rows["ReGLU share / SwiGLU share"] in section


def test_a_verdict_needs_every_seed() -> None:
    assert "**holds**" in carve._row("ratio", [[0.2, 0.21, 0.22]], 0.5)
    assert "**fails**" in carve._row("ratio", [[0.8, 0.81, 0.82]], 0.5)
    assert "**not shown**" in carve._row("ratio", [[0.3, 0.5, 0.7]], 0.5)
    assert "**" not in carve._row("ratio", [[0.2, 0.21]], 0.5)
