"""Figures of the grid, extraction, membership and paired differences; hostile names stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.audit.grid import cells, extraction_rates
from stamm.audit.membership import SCORES, areas
from stamm.audit.page.figures import audit_figures, memorization_figure
from stamm.audit.page.goldfish_figure import expected_gaps, expected_long_share
from stamm.audit.results import Audited, read_audited
from stamm.audit.section import probes, sections
from stamm.base.errors import DataError
from stamm.pages.config import ReportConfig
from stamm.pages.figure import Figure
from stamm.runs.run_view import ArmView, RunView, open_view
from tests.unit.reports.run_folder import HOSTILE, write, write_lines, write_study

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


def audits(root: Path) -> tuple[RunView, list[tuple[ArmView, Audited]]]:
    run = open_view(root)
    return run, [(arm, read_audited(arm)) for arm in run.arms]


def figures(root: Path) -> dict[str, Figure]:
    return {figure.key: figure for figure in audit_figures(*audits(root), 60)}


def test_every_figure_and_its_numbers(tmp_path: Path) -> None:
    found = figures(audited_study(tmp_path))
    names = [arm.name for arm in open_view(tmp_path).arms]
    arms = len(names)
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
    first = next(row for row in paired if row[0] != names[0])
    assert first[2].lstrip("−")[0] in "12"
    assert "[" in first[2]


def test_audits_with_other_settings_are_not_paired(tmp_path: Path) -> None:
    root = audited_study(tmp_path)
    first = next(iter(sorted(root.glob("arms/*/audit/memorization.json"))))
    write(first, {**json.loads(first.read_text()), "prefix_tokens": 7})
    found = figures(root)
    assert "membership" in found and "memory-paired" not in found


@pytest.mark.slow
def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    (section,) = sections(open_view(audited_study(tmp_path)), ReportConfig())
    assert HOSTILE not in section.html


def test_passages_are_redacted_on_request(tmp_path: Path) -> None:
    _, ((_, audited), *_) = audits(audited_study(tmp_path))
    for redact in (False, True):
        probe = probes(audited.continuations, 4, redact)[0]
        for text in (probe.prefix, probe.truth, probe.produced):
            assert (HOSTILE in text) is not redact
            assert ("characters, SHA-256" in text) is redact


def test_a_run_audited_by_an_earlier_version_has_no_such_figures(tmp_path: Path) -> None:
    write_study(tmp_path)
    assert not {key for key in figures(tmp_path) if key.startswith(("grid", "membership"))}


def test_passages_of_other_lengths_are_told(tmp_path: Path) -> None:
    root = write_study(tmp_path)
    equal = memorization_figure(*audits(root))
    path = root / "arms" / "relu2" / "audit" / "memorization.json"
    write(path, {**json.loads(path.read_text()), "new_tokens": 20})
    unequal = memorization_figure(*audits(root))
    assert equal is not None and "different settings" not in equal.caption
    assert unequal is not None
    assert "relu2: 50 prefix tokens, 20 new tokens" in unequal.caption


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "memorization.json",
            '{"schema": 1, "prefix_tokens": null}',
            r"prefix_tokens = None is not a whole",
        ),
        ("continuations.jsonl", '{"probe_id": 3}\n', r"line 1: probe_id = 3 is not text"),
        (
            "continuations.jsonl",
            '{"probe_id": "' + "x" * (5 * 2**20) + '"}\n',
            r"line 1 of .*continuations.jsonl is over 4 MiB",
        ),
    ],
    ids=["no number", "no text", "an endless line"],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    root = write_study(tmp_path)
    (root / "arms" / "xielu" / "audit" / name).write_text(text)
    with pytest.raises(DataError, match=message):
        audits(root)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"low": 0', '"low": 9', r"low = 9\S* is not at most the mean"),
        ('"high": 0', '"high": -0', r"high = -\S+ is not at least the"),
    ],
)
def test_a_number_out_of_its_range_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = write_study(tmp_path) / "arms" / "xielu" / "audit" / "memorization.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message) as told:
        audits(tmp_path)
    assert path.name in str(told.value)


def test_what_an_independent_mask_would_leave() -> None:
    k, count = 50, 400_000
    state, run, runs = 12345, 0, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        if (state >> 33) % k == 0:
            runs.append(run)
            run = 0
        else:
            run += 1
    learned = sorted(r for r in runs if r)
    share = sum(r for r in learned if r > 100) / count
    assert expected_long_share(k) == pytest.approx(share, abs=0.01)
    for quantile, expected in zip((0.5, 0.9, 0.99), expected_gaps(k), strict=True):
        assert learned[int(quantile * len(learned))] == pytest.approx(expected, rel=0.08)
