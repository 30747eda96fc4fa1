"""Faults of one process among those that torchrun started: all end, none hangs, and it goes on."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.cli.starter import ARM, lines_of, poisoned
from tests.cli.torchrun_runs import Place

pytestmark = pytest.mark.slow  # each test needs whole runs

# torchrun asks the others to end, and after 30 s kills them; the rest is what a busy machine takes.
GRACE_S = 30 + 60


def test_one_of_two_is_killed(place: Place) -> None:
    with place.begun("run", 8) as started:
        os.kill(place.of_rank(1), signal.SIGKILL)
        assert started.wait(timeout=GRACE_S) != 0
    told = place.said()
    assert "stamm: a peer process of this training run was lost." in told, told
    last = place.run(1, "run")
    assert last.returncode == 0 and "Resuming after step" in last.stderr, last.stderr
    alone = place.run(1, "alone")
    assert alone.returncode == 0
    assert place.losses("run") == pytest.approx(place.losses("alone"), rel=1e-4)


def test_bad_losses_are_answered_by_all(place: Place) -> None:
    """Two processes roll back together; one process goes on, and passes over the same steps."""
    table = "{8: float('nan'), 18: float('nan')}"
    place.recipe(poisoned(table))
    change = "engine.on_nonfinite=RollBackAndSkip"
    for count, out in ((1, "alone"), (2, "together")):
        done = place.run(count, out, change)
        assert done.returncode == 0, done.stderr[-3000:]
    events = [
        [
            (event["event"], event["first"], event["last"])
            for event in json.loads((place.folder / out / ARM / "events.json").read_text())[
                "events"
            ]
        ]
        for out in ("alone", "together")
    ]
    assert events == [[("skipped steps", 8, 8), ("skipped steps", 18, 18)]] * 2
    assert len(place.losses("together")) == 28
    assert place.losses("together") == pytest.approx(place.losses("alone"), rel=1e-4)


def test_processes_with_other_code_do_not_train_together(place: Place) -> None:
    more = "import os as _os\n\nimport stamm.engine.coordinator as _coordinator\n\n"
    more += '_coordinator.code_hash = lambda packages: _os.environ["RANK"]\n'
    place.recipe(more)
    done = place.run(2, "run")
    assert done.returncode != 0
    assert "stamm: process 1 of 2 runs other code than process 0." in done.stderr, done.stderr
    assert not (place.folder / "run" / ARM).exists()


def _told(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("stamm: ")]


def test_what_all_have_met_one_tells(place: Place) -> None:
    place.recipe(poisoned("{4: float('nan')}"))
    for change, said in (
        ("no_such_key=1", "no_such_key"),
        ("engine.parallel.tensor=3", "asks for ? x 1 x 3 processes"),
        ("seed=3", "step 4 has loss nan"),
    ):
        done = place.run(2, change.replace("=", "-"), change)
        assert done.returncode != 0
        (line,) = _told(done.stderr)
        assert said in line


def test_an_error_of_one_process_alone_is_told_by_it(place: Place) -> None:
    more = "import os as _os\n\nfrom stamm.pretrain.dataset import SequenceSampler as _Windows\n\n"
    more += "_batch = _Windows.batch\n\n\ndef _broken(self, first, count):\n"
    more += '    if first >= 40 and _os.environ["RANK"] == "1":\n'
    more += "        raise OSError(5, 'Input/output error')\n"
    more += "    return _batch(self, first, count)\n\n\n_Windows.batch = _broken\n"
    place.recipe(more)
    done = place.run(2, "run")
    assert done.returncode != 0
    assert "stamm: process 1: the sequences of step 11 could not be read" in done.stderr


def test_asked_to_end_through_one_process_all_end_at_once(place: Place) -> None:
    """A checkpoint of the step is there, one line is told, and the run goes on."""
    for rank, asked in ((1, "a signal to another process"), (0, "SIGUSR2")):
        there = lines_of(place.folder / "run")
        with place.begun("run", there + 4) as started:
            os.kill(place.of_rank(rank), signal.SIGUSR2)
            assert started.wait(timeout=GRACE_S) == 1  # torchrun's own
        told = place.said()
        (line,) = _told(told)
        assert f"asked to end ({asked})" in line
        assert "143" in told  # what the processes ended with, as torchrun tells
        newest = max((place.folder / "run" / ARM / "checkpoints").glob("step-*"))
        assert int(newest.name[-8:]) == lines_of(place.folder / "run")


def test_without_torchrun_its_processes_save_and_end(place: Place) -> None:
    with place.begun("run", 4) as started:
        began = time.monotonic()
        started.kill()
    for rank in (0, 1):
        with pytest.raises(AssertionError, match=f"no process of rank {rank}"):
            while time.monotonic() - began < 240:
                place.of_rank(rank)
                time.sleep(0.05)
    newest = max((place.folder / "run" / ARM / "checkpoints").glob("step-*"))
    assert int(newest.name[-8:]) == lines_of(place.folder / "run") < 30


def test_where_nothing_is_to_do_no_process_waits(place: Place) -> None:
    for flags in ((), (), ("--dry-run",)):
        done = place.run(2, "run", *flags)
        assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("pretrain") >= 1 and "done" in done.stdout
