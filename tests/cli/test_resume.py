"""Killed at any moment, the same command goes on and ends with the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Stamm, command, contents, environment


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("run", "smoke"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    smoke_run: Path, tmp_path: Path
) -> None:
    draw = random.Random(20261120)
    kills = 0
    for _ in range(6):
        process = _start(tmp_path)
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
    last = _start(tmp_path)
    _, errors = last.communicate(timeout=240)
    assert last.returncode == 0, errors.decode()
    left, right = contents(smoke_run), contents(tmp_path / "runs" / "smoke")
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name]] == []


@pytest.mark.parametrize("at_step", [7, 22])
def test_training_killed_between_checkpoints_ends_with_the_same_bits(
    smoke_run: Path, tmp_path: Path, at_step: int
) -> None:
    """Aimed at the training loop: kill as soon as the given step is in the metrics."""
    metrics = tmp_path / "runs" / "smoke" / "arms" / "xielu" / "metrics.jsonl"
    process = _start(tmp_path)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < 200:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= at_step:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "runs" / "smoke" / "report.html").exists()
    last = _start(tmp_path)
    _, errors = last.communicate(timeout=240)
    assert last.returncode == 0, errors.decode()
    assert b"Resuming after step" in errors
    assert contents(smoke_run) == contents(tmp_path / "runs" / "smoke")


def test_a_kill_in_the_middle_of_a_checkpoint_leaves_a_run_that_goes_on(
    smoke_run: Path, tmp_path: Path
) -> None:
    """What such a kill leaves is planted: a checkpoint's folder under its temporary name."""
    arm = tmp_path / "runs" / "smoke" / "arms" / "swiglu"
    process = _start(tmp_path)
    while process.poll() is None and not list((arm / "checkpoints").glob("step-*")):
        time.sleep(0.001)
    process.kill()
    process.wait()
    half = arm / "checkpoints" / ".step-00000099.part"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    last = _start(tmp_path)
    _, errors = last.communicate(timeout=240)
    assert last.returncode == 0, errors.decode()
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
    smoke_run: Path, stamm: Stamm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m bench.start` times light verbs."""
    before = {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*") if p.name != ".lock"}
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # every import is a line of stderr
    done = stamm("run", "smoke", "--out", str(smoke_run))
    assert done.returncode == 0, done.stderr
    assert "is complete: nothing to do" in done.stdout
    assert str(smoke_run / "report.html") in done.stdout
    after = {p: p.stat().st_mtime_ns for p in smoke_run.rglob("*") if p.name != ".lock"}
    assert before == after
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "stamm.recipes.execute" in imported
    assert not {"torch", "sympy", "transformers", "matplotlib.pyplot", "duckdb"} & imported
