"""The example of docs/accountability.md: from a step to its documents, from a URL to its receipt, to what is left to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stamm
from stamm.cli.main import main
from tests.conftest import ROOT, Stamm

URL = "https://unicode.org/udhr/d/udhr_epo.txt"
DOCUMENT = "5424f5cadb4d47e4356018a5812c4bf1"


def example() -> list[str]:
    """The commands of the page, a line each."""
    text = (ROOT / "docs" / "accountability.md").read_text(encoding="utf-8")
    return text.partition("## Worked example")[2].split("```")[1].strip().splitlines()


def test_the_example_of_the_page(stamm: Stamm, smoke_run: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    (tmp_path / "requests.txt").write_text("https://unicode.org/*\n")
    said = []
    for line in example():
        program, *words = line.split()
        if program == "stamm":
            result = stamm(*words)
        else:
            command = [sys.executable, "-I", *words]
            result = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
        said.append(" ".join(result.stdout.split()))
    step, document, _, ledger, receipt, checked, script, deep, below, replayed = said
    assert URL in step and "learned" in step
    assert "nats a token under the trained model" in document and "step 3 " in document
    assert "decision kept" in ledger and "tokens train 44971-51295" in ledger
    for text in (receipt, checked, script):
        assert URL in text and "is in the ledger" in text
    assert "files derived again from the weights and the records are the same" in deep
    assert deep.split()[deep.split().index("derived") - 2] not in ("0", "1")
    for arm in ("relu2", "swiglu", "xielu"):
        assert f"runs/smoke/arms/{arm}" in below
        assert (
            f"Next: stamm run pretrain.forget run=runs/smoke arm={arm} "
            "documents=runs/replayed/corpus/withdrawn_ids.txt" in replayed
        )
    assert "release release" in below
    ids = (tmp_path / "runs" / "replayed" / "corpus" / "withdrawn_ids.txt").read_text().split()
    assert DOCUMENT in ids and ids == sorted(set(ids))


def test_a_trace_of_the_smoke_run_agrees_with_its_sidecars(smoke_run: Path) -> None:
    arm = smoke_run / "arms" / "xielu"
    (traced,) = stamm.trace(arm, document=URL).arms
    assert (traced.documents[0].document_id, traced.documents[0].start) == (DOCUMENT, 44971)
    steps = [reading.step for reading in traced.documents[0].readings]
    for step in steps:
        (of_step,) = stamm.trace(arm, step=step, limit=1000).arms
        assert DOCUMENT in {document.document_id for document in of_step.documents}
    assert traced.first_step == min(steps)
    assert traced.checkpoints and max(traced.checkpoints) == traced.done


def test_a_config_that_a_run_wrote_and_that_is_missing_is_reported(
    smoke_run: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(smoke_run, tmp_path / "run")
    (root / "arms" / "relu2" / "config.json").unlink()
    named = {Path(arm.arm).name: arm for arm in stamm.trace(root, document=URL).arms}
    assert "config.json" in named["relu2"].error and named["xielu"].contains


def test_what_the_ledger_of_a_release_says(
    smoke_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release, run = tmp_path / "release", tmp_path / "release" / "run"
    (release / "documents").mkdir(parents=True)
    (release / "release.json").write_text("{}")
    shutil.copytree(
        smoke_run / "pack", run / "pack", ignore=shutil.ignore_patterns("*.bin", "*.documents.*")
    )
    shutil.copy(smoke_run / "corpus" / "ledger-00000.parquet", release / "documents")
    for folder in (release, run):
        assert main(["show", "ledger", str(folder), "decision=kept", "limit=3", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert len(rows) == 3 and all(row["tokens"] for row in rows if row["split"] == "train")
        whole = {
            row["document_id"]: [(t["start"], t["stop"]) for t in row["tokens"]]
            for row in stamm.ledger(smoke_run, decision="kept", limit=1000).rows
        }
        for row in rows:
            assert [(t["start"], t["stop"]) for t in row["tokens"]] == whole[row["document_id"]]
