"""The same command line under torchrun: the same losses, one folder, and it goes on after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import command, environment


def _words(count: int, smoke_run: Path, out: str, *changes: str) -> list[str]:
    """`stamm run` of a small recipe of the user's own, in `count` processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += [f"--nproc-per-node={count}", "-m", "stamm"]
    asked = ["run", "mine.py", f"pack={smoke_run / 'pack'}", "--out", out, *changes]
    return [*(start if count > 1 else command()), *asked]


RECIPE = '''
from dataclasses import replace

from stamm.pretrain.config import PretrainConfig
from stamm.recipes.demo import smoke as base


def mine() -> PretrainConfig:
    """The smoke recipe's models, on a corpus that is there."""
    return base().pretrain
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the recipe."""
    (tmp_path / "mine.py").write_text(RECIPE)
    return tmp_path


def _run(place: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def _metrics(run: Path) -> list[dict[str, Any]]:
    text = (run / "arms" / "xielu" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_two_processes_train_what_one_trains(smoke_run: Path, place: Path) -> None:
    for count, out, changes in (
        (1, "one", ()),
        (2, "data", ("micro_batch=1",)),
        (2, "context", ("engine.parallel.context=2",)),
    ):
        done = _run(place, _words(count, smoke_run, out, *changes))
        assert done.returncode == 0, done.stderr[-3000:]
    reference = _metrics(place / "one")
    for out in ("data", "context"):
        found = _metrics(place / out)
        for key in ("train/loss_nats", "optim/gradient_norm"):
            expected = [line[key] for line in reference]
            assert [line[key] for line in found] == pytest.approx(expected, rel=1e-4)
        for key in ("tokens", "train/kept_tokens", "optim/learning_rate"):
            assert [line[key] for line in found] == [line[key] for line in reference]
        assert (place / out / "report.html").is_file()
    timing = json.loads((place / "data/arms/xielu/log/timing.json").read_text())
    assert timing["processes"] == {"data": 2, "context": 1, "tensor": 1}
    assert timing["precision"] == "float32" and list(timing["devices"].values()) == [2]


def test_a_division_that_does_not_fit_is_told_in_one_line(smoke_run: Path, place: Path) -> None:
    for changes, said in (
        (("engine.parallel.tensor=3",), "asks for ? x 1 x 3 processes"),
        (("engine.parallel.tensor=2",), "does not divide model.num_kv_heads = 1"),
        (("batch.0.size=5",), "a step of 5 sequences does not divide over 2 processes"),
    ):
        done = _run(place, _words(2, smoke_run, changes[0].replace("=", "-"), *changes))
        assert done.returncode != 0
        assert f"stamm: {said}" in done.stderr or said in done.stderr, done.stderr[-3000:]


def _send(place: Path, starter: int, number: signal.Signals) -> None:
    """SIGTERM goes to torchrun, as from a cluster; SIGKILL to it and to every process it started."""
    if number is signal.SIGTERM:
        os.kill(starter, number)
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (folder / "cwd").resolve() == place.resolve():
                    os.kill(int(folder.name), number)


def test_killed_and_asked_to_end_it_goes_on(smoke_run: Path, place: Path) -> None:
    """Divided by context, kill -9 of all at a step; by data, SIGTERM; then to the end in one process."""
    whole = _run(place, _words(2, smoke_run, "whole"))
    assert whole.returncode == 0, whole.stderr[-3000:]
    metrics = place / "run" / "arms" / "xielu" / "metrics.jsonl"
    for number, at_step, division in (
        (signal.SIGKILL, 8, ("engine.parallel.context=2",)),
        (signal.SIGTERM, 16, ()),
    ):
        with subprocess.Popen(
            _words(2, smoke_run, "run", *division),
            cwd=place,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as started:
            began = time.monotonic()
            while started.poll() is None and time.monotonic() - began < 200:
                if metrics.exists() and metrics.read_bytes().count(b"\n") >= at_step:
                    _send(place, started.pid, number)
                    break
                time.sleep(0.002)
        assert started.returncode != 0
    last = _run(place, _words(1, smoke_run, "run"))
    assert last.returncode == 0 and "Going on from step" in last.stderr, last.stderr
    expected = [line["train/loss_nats"] for line in _metrics(place / "whole")]
    assert [line["train/loss_nats"] for line in _metrics(place / "run")] == pytest.approx(
        expected, rel=1e-4
    )
