"""Killed at any moment, the same command goes on and ends with the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Stamm, command, contents, environment
from tests.forked import Forked, Parent


@pytest.fixture
def start(parent: Parent, tmp_path: Path) -> Callable[[], Forked]:
    """Starts the run in the test's folder."""
    return lambda: parent.start(["stamm", "run", "smoke"], tmp_path, environment())


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    smoke_run: Path, tmp_path: Path, stamm: Stamm, start: Callable[[], Forked]
) -> None:
    draw = random.Random(20261120)
    kills = 0
    for _ in range(6):
        process = start()
        try:
            process.wait(timeout=draw.uniform(0.8, 3.2))
            break  # it ended before it was killed
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills >= 3
    manifest = json.loads((smoke_run / "arms" / "xielu" / "manifest.json").read_text())
    assert set(manifest["kernels"]) == {"attention", "activation xielu, fast"}
    last = stamm("run", "smoke")
    assert last.returncode == 0, last.stderr
    left, right = contents(smoke_run), contents(tmp_path / "runs" / "smoke")
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name]] == []


def test_training_killed_between_checkpoints_ends_with_the_same_bits(
    smoke_run: Path, tmp_path: Path, stamm: Stamm, start: Callable[[], Forked]
) -> None:
    """Killed at two steps of the training loop; then with what a kill within a checkpoint leaves."""
    arm = tmp_path / "runs" / "smoke" / "arms" / "xielu"
    metrics = arm / "metrics.jsonl"
    for at_step in (7, 22):
        process = start()
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 200:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= at_step:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "runs" / "smoke" / "report.html").exists()
    half = arm / "checkpoints" / ".step-00000099.part"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    last = stamm("run", "smoke")
    assert last.returncode == 0, last.stderr
    assert "Resuming after step" in last.stderr
    assert contents(smoke_run) == contents(tmp_path / "runs" / "smoke")


@pytest.mark.parametrize("lost", ["log", "model"])
def test_what_is_deleted_from_a_finished_run_is_made_again(
    smoke_run: Path, tmp_path: Path, stamm: Stamm, lost: str
) -> None:
    run = tmp_path / "runs" / "smoke"
    shutil.copytree(smoke_run, run, symlinks=True)
    gone = run / "arms" / "relu2" / lost
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
    done = stamm("run", "smoke")
    assert done.returncode == 0, done.stderr
    assert contents(run) == contents(smoke_run)


def test_training_without_its_metrics_is_refused_and_keeps_its_checkpoints(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    run = tmp_path / "runs" / "smoke"
    shutil.copytree(smoke_run, run, symlinks=True)
    arm = run / "arms" / "relu2"
    (arm / "metrics.jsonl").unlink()
    kept = sorted((arm / "checkpoints").iterdir())
    done = stamm("run", "smoke")
    assert done.returncode == 1
    assert "can be used" in done.stderr and "metrics.jsonl has changed" in done.stderr
    assert sorted((arm / "checkpoints").iterdir()) == kept


def test_a_complete_run_does_nothing_and_does_not_load_torch(
    smoke_run: Path,
) -> None:
    """`python -m bench.start` times light verbs."""
    before = {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*") if p.name != ".lock"}
    done = subprocess.run(
        command("run", "smoke", "--out", str(smoke_run)),
        env={**environment(), "PYTHONPROFILEIMPORTTIME": "1"},  # every import is a line of stderr
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is complete: nothing to do" in done.stdout
    assert str(smoke_run / "report.html") in done.stdout
    after = {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*") if p.name != ".lock"}
    assert before == after
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "stamm.recipes.execute" in imported
    assert not {"torch", "sympy", "transformers", "matplotlib.pyplot", "duckdb"} & imported
