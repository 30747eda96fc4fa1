"""Steps side by side: in the order of what they read, as many as there are workers, errors in one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import pytest

from stamm.base.console import NoProgress
from stamm.base.errors import DataError, RunError, StoppedError
from stamm.base.files import write_json
from stamm.pretrain.average_config import WeightAverage
from stamm.runs.job import Step, Workspace
from stamm.runs.run import Job, Run
from stamm.runs.step_pool import StepPool

WORKER = "tests.unit.runs.step_pool_worker"


def _step(name: str, *after: str, job: str = "apart", unless: str = "") -> Step:
    return Step(
        name=name,
        job=job,
        config=WeightAverage(),
        folder=name,
        after=after,
        outputs=("out.json",),
        unless=unless,
    )


@dataclass
class Here:
    """The job that stays in the run's own process; notes what was there when it began."""

    root: Path

    def __call__(self, kind: str) -> Job:
        def decide(config: object, place: Workspace) -> None:
            there = sorted(path.parent.name for path in self.root.glob("*/out.json"))
            write_json(
                place.folder / "out.json", {"stop": place.folder.name == "stop", "there": there}
            )

        return decide


def _execute(
    root: Path,
    steps: tuple[Step, ...],
    count: int,
    here: Callable[[str], Job] | None = None,
) -> list[str]:
    """Execute steps; returns the names in the order in which they were announced."""
    run, announced = Run(root, "test", (), {"a": 1}), []

    def announce(number: int, total: int, step: Step) -> str:
        announced.append(step.name)
        return f"[{number}/{total}] "

    pool = StepPool(count, frozenset({"apart"}), WORKER, quiet=True)
    with run.locked(), pool.opened():
        run.open()
        (root / "log").mkdir(exist_ok=True)
        run.execute(steps, here or Here(root), NoProgress(), announce, None, pool)
    assert run.state() == "complete"
    assert not pool.running
    return announced


def _span(root: Path, name: str) -> tuple[float, float]:
    found = json.loads((root / name / "out.json").read_text())
    return found["began"], found["ended"]


def test_steps_wait_for_what_they_read_and_for_a_free_worker(tmp_path: Path) -> None:
    root = tmp_path / "r"
    steps = (
        _step("a"),
        _step("b"),
        _step("c"),
        _step("sum", "a", "b", "c", job="here"),
        _step("last", "sum"),
    )
    assert _execute(root, steps, 2)[-2:] == ["sum", "last"]
    a, b, c = (_span(root, name) for name in "abc")
    assert a[0] < b[1] and b[0] < a[1]  # at the same time
    assert c[0] >= min(a[1], b[1])  # when a worker was free
    assert json.loads((root / "sum/out.json").read_text())["there"] == ["a", "b", "c"]
    assert _span(root, "last")[0] >= max(a[1], b[1], c[1])
    assert _execute(root, steps, 2) == []


@pytest.mark.parametrize(("gate", "done"), [("stop", False), ("go", True)])
def test_a_step_behind_a_gate_waits_for_it_and_is_left_out_where_it_says_so(
    tmp_path: Path, gate: str, done: bool
) -> None:
    root = tmp_path / "r"
    steps = (
        _step("a"),
        _step(gate, "a", job="here"),
        _step("more", unless=gate),
        _step("end", "a", gate, "more", job="here"),
    )
    _execute(root, steps, 2)
    assert (root / "more/out.json").exists() is done
    if done:
        assert _span(root, "more")[0] >= _span(root, "a")[1]


def test_what_a_job_raises_comes_back_as_it_is_and_ends_the_others(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with pytest.raises(DataError, match=r"^a file is damaged \(there\). Mend it.$"):
        _execute(root, (_step("slow"), _step("damaged")), 2)
    assert (root / "slow/asked").exists()
    assert not (root / "steps/slow.json").exists()
    with pytest.raises(RunError, match="step broken failed: ZeroDivisionError"):
        _execute(root, (_step("broken"), _step("b")), 1)


class AskedError(Exception):
    """Raised by the handler of a signal that was set before the pool."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_while_no_worker_has_a_step_does_what_it_did_before(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It was noted for later, and a step of this process may take hours."""

    def asked(signal_number: int, frame: FrameType | None) -> None:
        raise AskedError

    def here(config: object, place: Workspace) -> None:
        signal.raise_signal(number)

    before = signal.signal(number, asked)
    try:
        with pytest.raises(AskedError):
            _execute(tmp_path / "r", (_step("own", job="here"),), 2, lambda kind: here)
        assert signal.getsignal(number) is asked
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("more", [(), (_step("more", "a", job="here"),)])
def test_a_signal_behind_the_last_step_that_ends_is_not_lost(
    tmp_path: Path, more: tuple[Step, ...]
) -> None:
    root = tmp_path / "r"

    def here(config: object, place: Workspace) -> None:
        assert place.folder.name == "own"  # nothing begins after it
        until = time.monotonic() + 60
        while not (root / "a" / "out.json").exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)  # the worker has answered
        signal.raise_signal(signal.SIGTERM)
        write_json(place.folder / "out.json", {})

    steps = (_step("a"), _step("own", job="here"), *more)
    with pytest.raises(StoppedError, match=r"asked to end \(SIGTERM\)"):
        _execute(root, steps, 2, lambda kind: here)
    assert Run(root, "test", (), {"a": 1}).state() == "running"


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="step killed died, killed by SIGKILL, as when memory runs"):
        _execute(tmp_path / "r", (_step("killed"),), 2)


def test_steps_that_wait_for_what_does_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="wait for steps that do not exist: a"):
        _execute(tmp_path / "r", (replace(_step("a"), after=("nobody",)),), 2)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.unit.runs.test_step_pool import _execute, _step\n"
        "_execute(Path(sys.argv[1]), (_step('slow'), _step('slow2')), 2)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "r")])
    until = time.monotonic() + 60
    pids = [tmp_path / "r" / name / "pid" for name in ("slow", "slow2")]
    while not all(path.exists() and path.read_text() for path in pids):
        assert parent.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    numbers = [int(path.read_text()) for path in pids]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 10
    while any(_alive(number) for number in numbers):
        assert time.monotonic() < until
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
