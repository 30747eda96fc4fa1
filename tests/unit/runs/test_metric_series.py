"""metrics.jsonl as series: parsed once for all sections of a page, and again when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.compare.section import study_verdict
from stamm.pretrain.results import read_training
from stamm.runs import metric_series
from stamm.runs.metric_series import read_series
from tests.unit.reports.run_folder import write_study


def test_the_sections_of_a_page_parse_every_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, read = write_study(tmp_path / "demo"), list[Path]()
    lines = metric_series.read_lines

    def counted(kind: type, path: Path) -> object:
        read.append(path)
        return lines(kind, path)

    monkeypatch.setattr(metric_series, "read_lines", counted)
    study_verdict(root)
    files = sorted(root.glob("arms/*/metrics.jsonl"))
    for path in files:
        assert read_training(path.parent).metrics == read_series(path)
    assert sorted(read) == files


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss_nats": 2.0}\n')
    assert read_series(path).loss.values == (2.0,)
    path.write_text('{"step": 1, "train/loss_nats": 3.0}\n')
    assert read_series(path).loss.values == (3.0,)
    path.write_text('{"step": 1, "train/loss_nats": 3.0}\n{"step": 1, "train/loss_nats": 3.0}\n')
    for _ in range(2):  # what is damaged is not kept
        with pytest.raises(DataError, match=r"metrics.jsonl, line 2: step 1 follows step 1"):
            read_series(path)
