"""stamm's steps in a real datatrove pipeline: what is kept, what is excluded and why, what is counted."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import DataError
from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.config import ConsentConfig

pytest.importorskip("datatrove", reason='needs pip install "datatrove[io,processing]"')

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

from stamm.corpus.adapters.datatrove import PersonalData, ScreenFilter

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "Write to anna.meier@firma-meier.ch, please.", "url": "https://a.org/1"},
    {"id": "b", "text": "A page of a host that refuses.", "url": "https://closed.example/"},
    {"id": "c", "text": "Another open page.", "url": "https://a.org/2"},
    {"id": "d", "text": "The page of nobody.", "url": "https:///"},
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture
def config(tmp_path: Path) -> FilterConfig:
    refusing = tmp_path / "refusing.txt"
    refusing.write_text("closed.example\n")
    consent = ConsentConfig(unknown_host="allow", domains=(str(refusing),))
    return FilterConfig(inputs=("datatrove",), consent=consent)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = [x for file in sorted(folder.glob("*")) for x in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def run(tmp_path: Path, *steps: Any) -> dict[str, Any]:
    LocalPipelineExecutor(pipeline=list(steps), logging_dir=str(tmp_path / "log")).run()
    stats = json.loads((tmp_path / "log" / "stats.json").read_text())
    return {step["name"]: step for step in stats}


def test_the_filter_keeps_drops_with_reason_and_tells(
    tmp_path: Path, raw: Path, config: FilterConfig
) -> None:
    kept, excluded = tmp_path / "kept", tmp_path / "excluded"
    stats = run(
        tmp_path,
        JsonlReader(str(raw)),
        ScreenFilter(config, JsonlWriter(str(excluded), compression=None)),
        JsonlWriter(str(kept), compression=None),
    )
    assert [row["text"] for row in rows_of(kept)] == [
        "Write to <email-pii>, please.",
        "Another open page.",
    ]
    assert [row["metadata"]["stamm_pii_email"] for row in rows_of(kept)] == [1, 0]
    assert [(row["id"], row["metadata"]["filter_reason"]) for row in rows_of(excluded)] == [
        ("b", "domain_list"),
        ("d", "bad_url"),
    ]
    counts = stats["🔻 - FILTER: stamm screen"]["stats"]
    assert counts["dropped_domain_list"] == counts["dropped_bad_url"] == 1
    assert counts["total"] == 4


def test_personal_data_alone(tmp_path: Path, raw: Path) -> None:
    kept = tmp_path / "kept"
    stats = run(
        tmp_path, JsonlReader(str(raw)), PersonalData(), JsonlWriter(str(kept), compression=None)
    )
    assert [row["text"] for row in rows_of(kept)] == [
        "Write to <email-pii>, please.",
        *(row["text"] for row in ROWS[1:]),
    ]
    counts = stats["stamm: personal data"]["stats"]
    assert (counts["total"], counts["email"]) == (4, 1)
    assert "phone" not in counts


def test_the_steps_travel_to_workers(config: FilterConfig) -> None:
    for step in (ScreenFilter(config), PersonalData()):
        for other in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
            assert other.config == step.config


def test_a_missing_file_is_told_where_the_pipeline_is_written() -> None:
    consent = ConsentConfig(robots=("gone.jsonl",))
    with pytest.raises(DataError, match=r"gone\.jsonl"):
        ScreenFilter(FilterConfig(inputs=("datatrove",), consent=consent))
