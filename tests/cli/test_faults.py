"""Every fault that a month of training meets, through the real command line: the run says what it
was in one line, the same command goes on, and it ends with the bits of a run that met none.

Forked processes (tests/forked.py) make each run, so that dozens fit in a test.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.starter import ARM, Starter, lines_of, poisoned, same
from tests.conftest import contents, environment
from tests.forked import Parent

pytestmark = pytest.mark.slow  # each test needs whole runs


@pytest.fixture
def starter(parent: Parent, smoke_run: Path, tmp_path: Path) -> Starter:
    """Starts runs in a folder of this test's own."""
    return Starter(parent, tmp_path, smoke_run / "pack")


def _all_whole(run: Path) -> None:
    """Every checkpoint that has its name is as its hashes say."""
    for folder in (run / ARM / "checkpoints").glob("step-*"):
        recorded = json.loads((folder / "state.json").read_text())["sha256"]
        found = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.glob("*.safetensors")
        }
        assert found == recorded


@pytest.mark.parametrize("background", ["False", "True"])
def test_killed_at_random_moments_it_ends_with_the_same_bits(
    starter: Starter, background: str
) -> None:
    """Moments between steps, in steps, in checkpoints and while one is being written beside them."""
    changes = ("engine.checkpoint_every=2", f"engine.async_checkpointing={background}")
    expected = starter.whole(*changes)
    draw = random.Random(28)
    for _ in range(6):
        there = lines_of(starter.place / "run")
        starter.begin("run", *changes)
        moment = draw.uniform(0.0, 0.08)

        def kill(after: float = moment) -> None:
            time.sleep(after)
            starter.send(signal.SIGKILL)

        done = starter.until("run", min(there + draw.randint(0, 3), 30), kill)
        assert done.code in (-signal.SIGKILL, 0)
        _all_whole(starter.place / "run")
    assert starter.run("run", *changes).code == 0
    same(starter.place / "run", expected)


@pytest.mark.parametrize("background", ["False", "True"])
def test_asked_to_end_it_saves_and_goes_on(starter: Starter, background: str) -> None:
    """With a checkpoint being written beside every step, where `background`."""
    changes = ("engine.checkpoint_every=1", f"engine.async_checkpointing={background}")
    expected = starter.whole(*changes)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        there = lines_of(starter.place / "run")
        starter.begin("run", *changes)
        ended = starter.until("run", there + 4, lambda n=number: starter.send(n))  # type: ignore[misc]
        assert ended.code == 143
        assert f"asked to end ({number.name})" in ended.said.splitlines()[-1]
        newest = max((starter.place / "run" / ARM / "checkpoints").glob("step-*"))
        assert int(newest.name[-8:]) == lines_of(starter.place / "run")
    last = starter.run("run", *changes)
    assert last.code == 0 and "Resuming after step" in last.said
    same(starter.place / "run", expected)


def test_where_files_may_not_grow_it_says_so_and_goes_on_when_they_may(starter: Starter) -> None:
    """The checkpoint before stays."""
    expected = starter.whole()
    starter.begin("run")
    starter.until("run", 7, lambda: starter.send(signal.SIGKILL))
    checkpoints = starter.place / "run" / ARM / "checkpoints"
    kept = sorted(path.name for path in checkpoints.glob("step-*"))
    assert kept
    for largest in (200_000, 20_000, 3_000):
        ended = starter.run("run", largest=largest)
        assert ended.code == 1 and "no space left to write" in ended.said.splitlines()[-1], (
            ended.said
        )
        assert sorted(path.name for path in checkpoints.iterdir()) == kept
        _all_whole(starter.place / "run")
    assert starter.run("run").code == 0
    same(starter.place / "run", expected)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine does not let the tests mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("background", ["False", "True"])
def test_a_disk_that_fills_up_is_told_and_the_run_goes_on_when_there_is_room(
    starter: Starter, small_disk: Path, background: str
) -> None:
    changes = ("engine.checkpoint_every=3", f"engine.async_checkpointing={background}")
    expected = starter.whole(*changes)
    ballast = small_disk / "ballast"

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    for _ in range(3):
        there = lines_of(small_disk / "run")
        starter.begin(str(small_disk / "run"), *changes)
        ended = starter.until(str(small_disk / "run"), there + 2, fill)
        assert ended.code == 1, ended
        assert "no space left to write" in ended.said or "No space left" in ended.said, ended.said
        _all_whole(small_disk / "run")
        ballast.unlink()
    last = starter.run(str(small_disk / "run"), *changes)
    assert last.code == 0, last.said
    same(small_disk / "run", expected)


@pytest.fixture(scope="module")
def killed(
    parent: Parent, smoke_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, bytes]]:
    """A run killed behind step 12, with checkpoints of 5 and 10; what it would have left. Read only."""
    starter = Starter(parent, tmp_path_factory.mktemp("killed"), smoke_run / "pack")
    expected = starter.whole()
    starter.begin("run")
    starter.until("run", 12, lambda: starter.send(signal.SIGKILL))
    checkpoints = starter.place / "run" / ARM / "checkpoints"
    assert {"step-00000005", "step-00000010"} <= {p.name for p in checkpoints.iterdir()}
    return starter.place / "run", expected


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _shard(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def _other_schema(folder: Path) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "schema": 1}))


def _emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the weights": lambda folder: _flip(_shard(folder), -40_000),
    "cut short": lambda folder: os.truncate(_shard(folder), 100_000),
    "a shard is missing": lambda folder: _shard(folder).unlink(),
    "another schema": _other_schema,
    "emptied": _emptied,
    "a bit of a count": lambda folder: _flip(
        folder / "state.json", (folder / "state.json").read_bytes().index(b"10,\n")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_leads_to_the_same_bits(
    starter: Starter, killed: tuple[Path, dict[str, bytes]], damage: str
) -> None:
    shutil.copytree(killed[0], starter.place / "run")
    DAMAGES[damage](starter.place / "run" / ARM / "checkpoints" / "step-00000010")
    done = starter.run("run")
    assert done.code == 0, done.said
    assert "Checkpoint step-00000010 is damaged" in done.said
    assert "Resuming after step 5 of 30" in done.said
    assert "step-00000010 is damaged" in (starter.place / "run/log/run.log").read_text()
    same(starter.place / "run", killed[1])


def test_a_run_without_a_checkpoint_that_can_be_used_is_kept_and_told(
    starter: Starter, killed: tuple[Path, dict[str, bytes]]
) -> None:
    run = starter.place / "run"
    shutil.copytree(killed[0], run)
    for folder in (run / ARM / "checkpoints").glob("step-*"):
        _flip(_shard(folder), -1)
    done = starter.run("run")
    assert done.code == 1 and "none of the 2 checkpoints" in done.said.splitlines()[-1]
    assert len(list((run / ARM / "checkpoints").iterdir())) == 2


def test_metrics_damaged_in_the_middle_lead_back_to_before_the_damage(
    starter: Starter, killed: tuple[Path, dict[str, bytes]]
) -> None:
    shutil.copytree(killed[0], starter.place / "run")
    metrics = starter.place / "run" / ARM / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    lines[6] = b"\x00" * (len(lines[6]) - 1) + b"\n"  # what a power cut leaves of a block
    metrics.write_bytes(b"".join(lines))
    done = starter.run("run")
    assert done.code == 0, done.said
    assert "metrics.jsonl has changed" in done.said and "Resuming after step 5" in done.said
    same(starter.place / "run", killed[1])


def test_damaged_events_and_a_folder_that_cannot_be_written_are_named(
    starter: Starter, killed: tuple[Path, dict[str, bytes]]
) -> None:
    run = starter.place / "run"
    shutil.copytree(killed[0], run)
    (run / ARM / "events.json").write_text('{"schema": 1, "eve')
    done = starter.run("run")
    assert done.code == 1 and "events.json is not JSON" in done.said.splitlines()[-1]
    (run / ARM / "events.json").unlink()
    shutil.move(run / ARM / "checkpoints", starter.place / "away")
    (run / ARM / "checkpoints").write_text("no folder")
    done = starter.run("run")
    assert done.code == 1 and "step-00000005 was not written" in done.said.splitlines()[-1]
    (run / ARM / "checkpoints").unlink()
    shutil.move(starter.place / "away", run / ARM / "checkpoints")
    assert starter.run("run").code == 0
    same(run, killed[1])


POLICIES: dict[str, tuple[dict[int, float | str], list[str]]] = {
    "StopOnNonfinite": ({24: 50.0}, ["spike"]),
    "RollBackAndSkip": ({17: "float('nan')", 24: 50.0}, ["skipped steps", "skipped steps"]),
    "SkipUpdate": ({17: "float('inf')", 24: 50.0}, ["non-finite loss", "spike"]),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_bad_losses_under_each_policy_with_kills_between(starter: Starter, policy: str) -> None:
    poison, told = POLICIES[policy]
    table = "{" + ", ".join(f"{step}: {value}" for step, value in poison.items()) + "}"
    starter.recipe(poisoned(table))
    change = f"engine.on_nonfinite={policy}"
    expected = starter.whole(change)
    events = json.loads(expected[f"{ARM}/events.json"])["events"]
    assert [event["event"] for event in events] == told
    for at_line in (13, 16, 23):
        starter.begin("run", change)
        starter.until("run", at_line, lambda: starter.send(signal.SIGKILL))
    done = starter.run("run", change)
    assert done.code == 0
    assert {
        "StopOnNonfinite": "loss ",
        "RollBackAndSkip": "skipped steps: ",
        "SkipUpdate": "skipped updates: 1",
    }[policy] in done.said
    same(starter.place / "run", expected)
    assert _in_manifest(starter.place / "run") == events


def _in_manifest(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / ARM / "manifest.json").read_text())["events"]
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_an_absurd_learning_rate_ends_the_run_under_every_policy(
    starter: Starter, policy: str
) -> None:
    changes = ("schedule.peak=1e30", f"engine.on_nonfinite={policy}")
    left = []
    for _ in range(2):  # begun again, it ends again, with the same words and files
        done = starter.run("run", *changes)
        assert done.code == 1 and "Lower the learning rate" in done.said.splitlines()[-1], done.said
        left.append((done.said.splitlines()[-1], contents(starter.place / "run")))
    assert left[0] == left[1]
    assert any(name.endswith("events.json") for name in left[0][1])
    assert (
        _in_manifest(starter.place / "run")
        == json.loads(left[0][1][f"{ARM}/events.json"])["events"]
    )


def test_where_no_loss_is_a_number_and_it_is_to_go_on_the_end_says_so(starter: Starter) -> None:
    table = "{step: float('nan') for step in range(1, 31)}"
    starter.recipe(poisoned(table))
    done = starter.run("run", "engine.on_nonfinite=SkipUpdate", "engine.on_nonfinite.at_most=100")
    assert done.code == 0, done.said
    assert "no update was made: every loss was non-finite" in done.said
    summary = json.loads((starter.place / "run" / ARM / "summary.json").read_text())
    assert (summary["final_loss_nats"], summary["learned_tokens"]) == (None, 0)
    assert len(summary["events"]) == summary["steps"] == 30


def test_tokens_that_vanish_or_are_cut_short(starter: Starter, smoke_run: Path) -> None:
    """Told in one line, though a mapped file that shrinks kills who reads on; then it goes on."""
    starter.pack = starter.place / "pack"
    shutil.copytree(smoke_run / "pack", starter.pack)
    change = "engine.checkpoint_every=1"  # slow enough to be caught early
    expected = starter.whole(change)
    tokens = starter.pack / "train-00000.bin"
    data = tokens.read_bytes()
    starter.begin("run", change)
    cut = starter.until("run", 3, lambda: os.truncate(tokens, 4096))
    assert cut.code == 1 and "train-00000.bin was truncated" in cut.said.splitlines()[-1], cut.said
    for removed in (False, True):
        if removed:
            tokens.unlink()
        done = starter.run("run", change)
        assert done.code == 1 and "train-00000.bin" in done.said.splitlines()[-1], done.said
    tokens.write_bytes(data)
    assert starter.run("run", change).code == 0
    same(starter.place / "run", expected)


def test_a_reader_that_fails_is_told_and_the_run_goes_on(starter: Starter) -> None:
    expected = starter.whole()
    starter.recipe(
        "from stamm.pretrain.dataset import SequenceSampler as _Windows\n\n"
        "_batch = _Windows.batch\n\n\n"
        "def _broken(self, first, count):\n"
        "    if first >= 40:\n"
        "        raise OSError(5, 'Input/output error')\n"
        "    return _batch(self, first, count)\n\n\n"
        "_Windows.batch = _broken\n"
    )
    done = starter.run("run")
    assert done.code == 1
    assert "the sequences of step 11 could not be read" in done.said.splitlines()[-1]
    starter.recipe()
    assert starter.run("run").code == 0
    same(starter.place / "run", expected)


def test_a_clock_that_jumps_changes_nothing(starter: Starter) -> None:
    expected = starter.whole()
    starter.recipe(
        "import random as _random\nimport time as _time\nfrom datetime import datetime as _datetime\n\n"
        "import stamm.runs.manifest as _manifest\n\n\n"
        "class _Jumping(_datetime):\n"
        "    @classmethod\n"
        "    def now(cls, zone=None):\n"
        "        return _datetime.fromtimestamp(_random.uniform(0, 4e9), zone)\n\n\n"
        "_time.time = lambda: _random.uniform(-1e9, 4e9)\n"
        "_manifest.datetime = _Jumping\n"
    )
    starter.begin("run")
    starter.until("run", 12, lambda: starter.send(signal.SIGKILL))
    assert starter.run("run").code == 0
    same(starter.place / "run", expected)


def test_other_threads_another_run_and_another_division(starter: Starter) -> None:
    """What may not change is refused; what may, changes no bit."""
    expected = starter.whole()
    starter.begin("run")
    words = ["run", "mine.py", f"pack={starter.pack}", "--out", "run"]
    seen: list[subprocess.CompletedProcess[str]] = []

    def meanwhile() -> None:
        starter.send(signal.SIGSTOP)
        seen.append(
            subprocess.run(
                [sys.executable, "-m", "stamm", *words],
                cwd=starter.place,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        )
        starter.send(signal.SIGCONT)
        starter.send(signal.SIGKILL)

    starter.until("run", 8, meanwhile)
    assert seen[0].returncode == 1 and "another process uses run" in seen[0].stderr
    refused = starter.run("run", "engine.threads=2")
    assert refused.code == 2 and "engine.threads: 1 there, 2 requested" in refused.said
    assert starter.run("run").code == 0
    same(starter.place / "run", expected)
