"""Figures of the grid, extraction, membership and paired differences; hostile names stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_folder import HOSTILE, write, write_lines, write_study

from stamm.audit.grid import cells, extraction_rates
from stamm.audit.membership import SCORES, areas
from stamm.reports.audit_figures import audit_figures
from stamm.reports.config import ReportConfig
from stamm.reports.job import write_report
from stamm.reports.page import page_of
from stamm.reports.run_data import collect

REPEATS = (0, 4, 32)


def rows() -> list[dict[str, Any]]:
    """Grid points: two passages of each number of repeats, in two languages."""
    side = {
        "rouge_l": 0.3, "longest_common_span_share": 0.1, "exact_match": 0.0, "type_token_ratio": 0.7,
    }  # fmt: skip
    return [
        {
            "probe_id": f"r{repeats}-{number}", "language": f"{HOSTILE}{number}", "repeats": repeats,
            "prefix_tokens": prefix, "offset_tokens": offset, "nll_nats": 5 - repeats / 16 + number,
            "log_p": -9.0 + repeats / 4, "true_type_token_ratio": 0.8, "greedy": side,
            "sampled": side,
        }
        for repeats in REPEATS
        for number in range(2)
        for prefix in (50, 100)
        for offset in (0, 2)
    ]  # fmt: skip


def audited_study(root: Path) -> Path:
    write_study(root)
    for number, arm in enumerate(sorted(p for p in (root / "arms").iterdir() if p.is_dir())):
        stored = json.loads((arm / "audit" / "memorization.json").read_text())
        sha256 = stored.get("model_sha256")
        grid = {
            "schema": 1, "model_sha256": sha256, "new_tokens": 20, "match_tokens": 10,
            "temperature": 1.0, "top_k": 40, "top_p": 1.0, "seed": 1, "as_published": [HOSTILE],
            "excluded": 0, "points": 24, "left_out": 3, "cells": cells(rows()),
            "extraction": extraction_rates(rows()),
        }  # fmt: skip
        write(arm / "audit" / "grid.json", grid)
        scored = [
            {"group": "", "language": "", "repeats": count, **dict.fromkeys(SCORES, count + n)}
            for count in REPEATS
            for n in range(2)
        ]
        write(arm / "audit" / "membership.json", {
            "schema": 1, "model_sha256": sha256, "min_k": 0.2, "passages": 4, "controls": 2,
            "areas": areas(scored),
        })  # fmt: skip
        lines = [
            {
                "probe_id": f"r{count}-{n}", "repeats": count, "prefix": HOSTILE, "truth": HOSTILE,
                "produced": HOSTILE, "rouge_l": 0.1 * number, "nll_nats": 4.0 + number + 0.1 * n,
            }
            for count in REPEATS
            for n in range(3)
        ]  # fmt: skip
        write_lines(arm / "audit" / "continuations.jsonl", lines)
    return root


def test_every_figure_and_its_numbers(tmp_path: Path) -> None:
    study = collect(audited_study(tmp_path))
    found = {figure.key: figure for figure in audit_figures(study, 60)}
    arms = len(study.arms)
    assert set(found) == {*(f"grid-{n}" for n in range(arms)), "membership", "memory-paired"}
    assert all(HOSTILE not in figure.svg for figure in found.values())
    table = found["grid-0"].data.rows
    assert {row[0] for row in table} == {"control", "4", "32"}
    every = next(row for row in table if row[:4] == ("32", "all", "50", "0"))
    assert every[5].startswith("3.500 [")
    loss = [row for row in found["membership"].data.rows if row[1] == "AUC, loss"]
    assert {row[2]: row[3][:5] for row in loss[:3]} == {"4": "1.000", "32": "1.000", "any": "1.000"}
    within = [row for row in found["membership"].data.rows if "within 1,000,000" in row[1]]
    assert len(within) == arms * 2 * len(REPEATS)
    paired = found["memory-paired"].data.rows
    assert len(paired) == (arms - 1) * len(REPEATS)
    names = [arm.name for arm in study.arms]
    first = next(row for row in paired if row[0] != names[0])
    assert first[2].lstrip("−")[0] in "12"
    assert "[" in first[2]


def test_audits_with_other_settings_are_not_paired(tmp_path: Path) -> None:
    root = audited_study(tmp_path)
    first = next(iter(sorted(root.glob("arms/*/audit/memorization.json"))))
    write(first, {**json.loads(first.read_text()), "prefix_tokens": 7})
    found = {figure.key for figure in audit_figures(collect(root), 60)}
    assert "membership" in found and "memory-paired" not in found


@pytest.mark.slow
def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_report(audited_study(tmp_path), page, ReportConfig())
    assert HOSTILE not in page.read_text()


def test_passages_are_redacted_on_request(tmp_path: Path) -> None:
    study = collect(audited_study(tmp_path))
    for redact in (False, True):
        ((_, probes), *_) = page_of(study, ReportConfig(redact=redact)).probes
        for text in (probes[0].prefix, probes[0].truth, probes[0].produced):
            assert (HOSTILE in text) is not redact
            assert ("characters, SHA-256" in text) is redact


def test_a_run_audited_by_an_earlier_version_has_no_such_figures(tmp_path: Path) -> None:
    write_study(tmp_path)
    keys = {figure.key for figure in audit_figures(collect(tmp_path), 60)}
    assert not {key for key in keys if key.startswith(("grid", "membership"))}
