"""`stamm report` beside the run itself, and beside another report of the same run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stamm.base.files import read_json, sha256_file
from stamm.cli.main import main
from stamm.runs.command_receipts import report_lock
from stamm.runs.run import Run
from tests.cli.test_import_command import base_model


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    base_model(tmp_path / "model")
    assert main(["import", "model"]) == 0
    return Path("runs/model")


@pytest.mark.parametrize("place", [".", "arms/model"])
def test_a_page_is_not_written_into_a_run_that_is_going_on(
    place: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(run, "", (), None).locked():
        assert main(["report", str(run / place)]) == 1
        said = capsys.readouterr().err
        assert "another process uses runs/model" in said and "elsewhere with --out" in said
        assert not (run / place / "report.html").exists()
        assert main(["report", str(run / place), "--out", "page.html"]) == 0  # only reads
    assert main(["report", str(run / place)]) == 0
    assert (run / place / "report.html").read_bytes() == Path("page.html").read_bytes()


def test_two_reports_at_once_leave_the_page_and_the_receipt_of_one(run: Path) -> None:
    second = threading.Thread(target=main, args=(["report", str(run), "examples=0"],))
    with report_lock(run):  # the first one, between its page and its receipt
        second.start()
        second.join(3)
        assert second.is_alive() and not (run / "report.html").exists()
    second.join(60)
    assert not second.is_alive()
    outputs = read_json(run / "receipts" / "report.json")["outputs"]
    assert outputs["report.html"]["sha256"] == sha256_file(run / "report.html")
    assert main(["release", str(run), "--out", "bundle", "--dry-run"]) == 0
