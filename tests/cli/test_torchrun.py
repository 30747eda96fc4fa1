"""The same command line under torchrun: the same losses, one folder, and it goes on after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.torchrun_runs import Place
from tests.conftest import ROOT, environment

pytestmark = pytest.mark.slow  # each test needs whole runs


def test_two_processes_train_what_one_trains(place: Place) -> None:
    # At the recipe's own rate, 3e-3, some steps multiply rounding errors by a thousand: with one
    # seed the norms differ by 1e-3. At this one they agree to 5e-7.
    rate = "schedule.peak=1e-3"
    for done in (
        place.run(1, "one", rate),
        place.torchrun("data", "micro_batch=1", rate),
        place.run(2, "context", "engine.parallel.context=2", rate),
        place.run(2, "replicas", "engine.parallel.replicas=2", rate),
    ):
        assert done.returncode == 0, done.stderr[-3000:]
    reference = place.metrics("one")
    for out in ("data", "context", "replicas"):
        found = place.metrics(out)
        for key in ("train/loss_nats", "optim/gradient_norm"):
            expected = [line[key] for line in reference]
            assert [line[key] for line in found] == pytest.approx(expected, rel=1e-5)
        for key in ("tokens", "train/kept_tokens", "optim/learning_rate"):
            assert [line[key] for line in found] == [line[key] for line in reference]
        assert (place.folder / out / "report.html").is_file()
    timing = json.loads((place.folder / "data/arms/xielu/log/timing.json").read_text())
    assert timing["processes"] == {"data": 2, "context": 1, "tensor": 1}
    assert timing["precision"] == "float32" and list(timing["devices"].values()) == [2]


def test_two_processes_evaluate_during_training_as_one_does(place: Place) -> None:
    """The main process evaluates whole weights; the sample is divided by the number of processes."""
    key = "evaluate/held_out/bits_per_byte"
    settings = ("context=128", "sequences=48", "evaluate=PeriodicEvaluation", "evaluate.every=6")
    for count, share in ((1, 0.5), (2, 1.0)):
        done = place.run(count, f"evaluated{count}", *settings, f"evaluate.share={share}")
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = place.metrics("evaluated1"), place.metrics("evaluated2")
    assert [line["step"] for line in one if key in line] == [6, 12]
    assert [line.get(key) for line in two] == [
        value if value is None else pytest.approx(value, rel=1e-4)
        for value in (line.get(key) for line in one)
    ]


def test_a_division_that_does_not_fit_is_told_in_one_line(place: Place) -> None:
    for changes, said in (
        (("engine.parallel.tensor=3",), "asks for ? x 1 x 3 processes"),
        (("engine.parallel.tensor=2",), "does not divide model.num_kv_heads = 1"),
        (("engine.parallel.replicas=3",), "replicas = 3 does not divide the 2 data-parallel"),
        (("batch.0.size=5",), "a step of 5 sequences does not divide over 2 processes"),
    ):
        done = place.run(2, changes[0].replace("=", "-"), *changes)
        assert done.returncode != 0
        assert f"stamm: {said}" in done.stderr or said in done.stderr, done.stderr[-3000:]


def test_a_users_optimizer_is_planned_and_trained(place: Place) -> None:
    """docs/extending/optimizer.md: in one process and two; refused where it is not elementwise."""
    page = (ROOT / "docs" / "extending" / "optimizer.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.S)[0]
    (place.folder / "lion.py").write_text(code)
    changes = ("optimizer=lion.py:Lion", "schedule.peak=1e-4")
    words = ["stamm", "plan", "mine.py", f"pack={place.pack}", *changes]
    planned = place.parent.run(words, place.folder, environment())
    assert planned.returncode == 0, planned.stderr
    told = " ".join(planned.stdout.split())
    assert "estimated from 1 numbers of 32 bits per parameter" in told
    for count in (1, 2):
        done = place.run(count, str(count), *changes)
        assert done.returncode == 0, done.stderr[-3000:]
    assert place.losses("2") == pytest.approx(place.losses("1"), rel=1e-3)
    (place.folder / "lion.py").write_text(code.replace("elementwise = True", ""))
    done = place.run(2, "whole", *changes)
    assert done.returncode != 0
    assert "optimizer lion.py:Lion does not declare elementwise = True" in done.stderr


def _send(place: Place, starter: int, number: signal.Signals) -> None:
    """SIGTERM goes to torchrun, as from a cluster; SIGKILL to it and to every process it started."""
    if number is signal.SIGTERM:
        os.kill(starter, number)
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (folder / "cwd").resolve() == place.folder.resolve():
                    os.kill(int(folder.name), number)


def test_killed_and_asked_to_end_it_goes_on(place: Place) -> None:
    """Divided by context, kill -9 of all at a step; by data, SIGTERM; then to the end in one process."""
    whole = place.run(2, "whole")
    assert whole.returncode == 0, whole.stderr[-3000:]
    for number, at_step, division in (
        (signal.SIGKILL, 8, ("engine.parallel.context=2",)),
        (signal.SIGTERM, 16, ()),
    ):
        with place.begun("run", at_step, *division) as started:
            _send(place, started.pid, number)
        assert started.returncode != 0
    last = place.run(1, "run")
    assert last.returncode == 0 and "Resuming after step" in last.stderr, last.stderr
    assert place.losses("run") == pytest.approx(place.losses("whole"), rel=1e-4)
