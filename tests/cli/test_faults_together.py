"""Faults of one process among those that torchrun started: all end, none hangs, and it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.starter import ARM, RECIPE, lines_of, poisoned
from tests.conftest import command, environment

# torchrun asks the others to end, and after 30 s kills them; the rest is what a busy machine takes.
GRACE_S = 30 + 60


def _words(count: int, smoke_run: Path, out: str, *changes: str) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += [f"--nproc-per-node={count}", "-m", "stamm"]
    asked = ["run", "mine.py", f"pack={smoke_run / 'pack'}", "--out", out, *changes]
    return [*(start if count > 1 else command()), *asked]


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


def _of_rank(place: Path, rank: int) -> int:
    """The process of that rank which works in `place`."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cwd").resolve() == place.resolve():
                told = (folder / "environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in told:
                    return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank} in {place}")


def _losses(run: Path) -> list[float]:
    lines = (run / ARM / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["train/loss_nats"] for line in lines]


def test_one_of_two_is_killed(smoke_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.format(more=""))
    with (
        (tmp_path / "stderr").open("w") as said,
        subprocess.Popen(
            _words(2, smoke_run, "run"),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=said,
        ) as started,
    ):
        began = time.monotonic()
        while started.poll() is None and lines_of(tmp_path / "run") < 8:
            assert time.monotonic() - began < 200
            time.sleep(0.002)
        os.kill(_of_rank(tmp_path, 1), signal.SIGKILL)
        assert started.wait(timeout=GRACE_S) != 0
    told = (tmp_path / "stderr").read_text()
    assert "stamm: another process that trains with this one is gone." in told, told
    last = _run(tmp_path, _words(1, smoke_run, "run"))
    assert last.returncode == 0 and "Going on from step" in last.stderr, last.stderr
    alone = _run(tmp_path, _words(1, smoke_run, "alone"))
    assert alone.returncode == 0
    assert _losses(tmp_path / "run") == pytest.approx(_losses(tmp_path / "alone"), rel=1e-4)


def test_bad_losses_are_answered_by_all(smoke_run: Path, tmp_path: Path) -> None:
    """Two processes roll back together; one process goes on, and passes over the same steps."""
    table = "{8: float('nan'), 18: float('nan')}"
    (tmp_path / "mine.py").write_text(RECIPE.format(more=poisoned(table)))
    change = "engine.bad_losses=RollBack"
    for count, out in ((1, "alone"), (2, "together")):
        done = _run(tmp_path, _words(count, smoke_run, out, change))
        assert done.returncode == 0, done.stderr[-3000:]
    events = [
        [
            (event["event"], event["first"], event["last"])
            for event in json.loads((tmp_path / out / ARM / "events.json").read_text())["events"]
        ]
        for out in ("alone", "together")
    ]
    assert events == [[("passed over", 8, 8), ("passed over", 18, 18)]] * 2
    assert len(_losses(tmp_path / "together")) == 28
    assert _losses(tmp_path / "together") == pytest.approx(_losses(tmp_path / "alone"), rel=1e-4)


def test_processes_with_other_code_do_not_train_together(smoke_run: Path, tmp_path: Path) -> None:
    more = "import os as _os\n\nimport stamm.engine.crew as _crew\n\n"
    more += '_crew.code_hash = lambda rooms: _os.environ["RANK"]\n'
    (tmp_path / "mine.py").write_text(RECIPE.format(more=more))
    done = _run(tmp_path, _words(2, smoke_run, "run"))
    assert done.returncode != 0
    assert "stamm: process 1 of 2 runs other code than process 0." in done.stderr, done.stderr
    assert not (tmp_path / "run" / ARM).exists()


def _told(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("stamm: ")]


def test_what_all_have_met_one_tells(smoke_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.format(more=poisoned("{4: float('nan')}")))
    for change, said in (
        ("no_such_key=1", "no_such_key"),
        ("engine.parallel.tensor=3", "asks for ? x 1 x 3 processes"),
        ("seed=3", "step 4 has loss nan"),
    ):
        done = _run(tmp_path, _words(2, smoke_run, change.replace("=", "-"), change))
        assert done.returncode != 0
        (line,) = _told(done.stderr)
        assert said in line


def test_an_error_of_one_process_alone_is_told_by_it(smoke_run: Path, tmp_path: Path) -> None:
    more = "import os as _os\n\nfrom stamm.pretrain.batches import Windows as _Windows\n\n"
    more += "_batch = _Windows.batch\n\n\ndef _broken(self, first, count):\n"
    more += '    if first >= 40 and _os.environ["RANK"] == "1":\n'
    more += "        raise OSError(5, 'Input/output error')\n"
    more += "    return _batch(self, first, count)\n\n\n_Windows.batch = _broken\n"
    (tmp_path / "mine.py").write_text(RECIPE.format(more=more))
    done = _run(tmp_path, _words(2, smoke_run, "run"))
    assert done.returncode != 0
    assert "stamm: process 1: the sequences of step 11 could not be read" in done.stderr


def test_asked_to_end_through_one_process_all_end_at_once(smoke_run: Path, tmp_path: Path) -> None:
    """A checkpoint of the step is there, one line is told, and the run goes on."""
    (tmp_path / "mine.py").write_text(RECIPE.format(more=""))
    for rank, asked in ((1, "a signal to another process"), (0, "SIGUSR2")):
        there = lines_of(tmp_path / "run")
        with (
            (tmp_path / "stderr").open("w") as said,
            subprocess.Popen(
                _words(2, smoke_run, "run"),
                cwd=tmp_path,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=said,
            ) as started,
        ):
            began = time.monotonic()
            while started.poll() is None and lines_of(tmp_path / "run") < there + 4:
                assert time.monotonic() - began < 200
                time.sleep(0.002)
            os.kill(_of_rank(tmp_path, rank), signal.SIGUSR2)
            assert started.wait(timeout=GRACE_S) == 1  # torchrun's own
        told = (tmp_path / "stderr").read_text()
        (line,) = _told(told)
        assert f"asked to end ({asked})" in line
        assert "143" in told  # what the processes ended with, as torchrun tells
        newest = max((tmp_path / "run" / ARM / "checkpoints").glob("step-*"))
        assert int(newest.name[-8:]) == lines_of(tmp_path / "run")


def test_without_torchrun_its_processes_save_and_end(smoke_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.format(more=""))
    with subprocess.Popen(
        _words(2, smoke_run, "run"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as started:
        began = time.monotonic()
        while started.poll() is None and lines_of(tmp_path / "run") < 4:
            assert time.monotonic() - began < 200
            time.sleep(0.002)
        started.kill()
    for rank in (0, 1):
        with pytest.raises(AssertionError, match=f"no process of rank {rank}"):
            while time.monotonic() - began < 240:
                _of_rank(tmp_path, rank)
                time.sleep(0.05)
    newest = max((tmp_path / "run" / ARM / "checkpoints").glob("step-*"))
    assert int(newest.name[-8:]) == lines_of(tmp_path / "run") < 30


def test_where_nothing_is_to_do_no_process_waits(smoke_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.format(more=""))
    for flags in ((), (), ("--dry-run",)):
        done = _run(tmp_path, _words(2, smoke_run, "run", *flags))
        assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("pretrain") >= 1 and "done" in done.stdout
