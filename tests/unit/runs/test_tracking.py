"""A tracker receives every line of metrics.jsonl once, however often the run is interrupted."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.runs import tracker_sync
from stamm.runs import tracking as module
from stamm.runs.event_file import EventFile, crc32c
from stamm.runs.metrics import MetricsFile, read_metrics
from stamm.runs.tracker_config import TensorBoard, TrackerConfig, Trackio, WandB
from stamm.runs.tracker_sync import TrackerSync, tracker_label
from stamm.runs.trackers import Tracker, TrackerRun
from stamm.runs.tracking import tracking, without_secrets

KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    trackers: tuple[TensorBoard | Trackio | WandB, ...] = ()


class Book:
    """A tracker of its own: what each run in it was told."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.openings: list[TrackerRun] = []

    def __call__(self, run: TrackerRun) -> Tracker:
        self.openings.append(run)
        lines = self.runs.setdefault(run.run_id, [])

        class Run:
            def log(self, step: int, values: Mapping[str, float]) -> None:
                lines.append((step, dict(values)))

            def flush(self) -> None: ...

            def finish(self) -> None: ...

        return Run()

    def steps(self) -> list[list[int]]:
        return [[step for step, _ in lines] for lines in self.runs.values()]


class Talk(NoProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


def _line(step: int, salt: float = 0.0) -> dict[str, Any]:
    return {"step": step, "train/loss_nats": 5.0 / step + salt, "text": "not a number"}


def _write(folder: Path, after: int, steps: Sequence[int], salt: float = 0.0) -> None:
    """What a run writes that goes on behind step `after`."""
    with (
        MetricsFile(folder / "metrics.jsonl", after) as metrics,
        MetricsFile(folder / "log/speed.jsonl", after) as speed,
    ):
        for step in steps:
            metrics.write(_line(step, salt))
            speed.write({"step": step, "speed/tokens_per_s": 100.0 + random.random()})


def _sync(folder: Path, book: Book, config: TrackerConfig | None = None) -> TrackerSync:
    return TrackerSync(config or WandB(), folder, "demo/xielu", {"a": 1}, book)


def _truth(folder: Path) -> list[tuple[int, float]]:
    return [(li["step"], li["train/loss_nats"]) for li in read_metrics(folder / "metrics.jsonl")]


def _told(lines: list[tuple[int, dict[str, float]]]) -> list[tuple[int, float]]:
    return [(step, values["train/loss_nats"]) for step, values in lines]


def test_trackers_are_configured_like_any_configuration() -> None:
    line = [
        "trackers=TensorBoard,WandB,Trackio",
        "trackers.1.mode=offline",
        "trackers.2.space=me/it",
    ]
    recipe = override(Recipe(), line)
    chosen = (TensorBoard(), WandB(mode="offline"), Trackio(space="me/it"))
    assert recipe == Recipe(trackers=chosen)
    assert from_plain(Recipe, to_plain(recipe)) == recipe
    for wrong in (
        ["trackers=Wandb2"],
        [line[0], "trackers.1.project=a/b"],
        [line[0], "trackers.2.space=me"],
    ):
        with pytest.raises(ConfigError):
            override(Recipe(), wrong)


def test_each_step_is_sent_once_with_its_speed_as_the_files_grow(tmp_path: Path) -> None:
    book = Book()
    sync = _sync(tmp_path, book)
    sync.update()
    _write(tmp_path, 0, [1, 2])
    sync.update()
    assert book.steps() == [[1, 2]]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_line(3)) + '\n{"step": 4, "tr')
    sync.update()
    assert book.steps() == [[1, 2]]  # its speed is not known yet
    sync.update(last=True)
    assert book.steps() == [[1, 2, 3]]
    told = next(iter(book.runs.values()))
    assert told[0][1].keys() == {"train/loss_nats", "speed/tokens_per_s"}
    assert told[2][1].keys() == {"train/loss_nats"}
    assert book.openings[0].name == "demo/xielu"
    assert book.openings[0].facts == {"a": 1}


def test_a_backlog_is_sent_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_sync, "LINES_PER_UPDATE", 4)
    book = Book()
    sync = _sync(tmp_path, book)
    _write(tmp_path, 0, range(1, 20))
    sync.update()
    assert book.steps() == [[1, 2, 3, 4]]
    _sync(tmp_path, book).update()
    assert book.steps() == [list(range(1, 9))]
    _sync(tmp_path, book).update(last=True)
    assert book.steps() == [list(range(1, 20))]


@pytest.mark.parametrize("seed", range(8))
def test_a_run_killed_anywhere_is_sent_once_by_trackers_killed_anywhere(
    tmp_path: Path, seed: int
) -> None:
    """Same bytes when it goes on: no step twice, none left out, one run in the tracker."""
    draw = random.Random(seed)
    book, done = Book(), 0
    sync = _sync(tmp_path, book)
    while done < 40:
        saved = draw.randint(max(done - 9, 0), done)
        done = min(saved + draw.randint(1, 15), 40)
        _write(tmp_path, saved, range(saved + 1, done + 1))
        if draw.random() < 0.3:
            sync = _sync(tmp_path, book)  # the process that kept it was lost
        if draw.random() < 0.7:
            sync.update()
    sync.update(last=True)
    assert book.steps() == [list(range(1, 41))]
    assert _told(next(iter(book.runs.values()))) == _truth(tmp_path)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("steps", [[4, 5, 6, 7], [6, 7], [5], [4, 6]])
def test_steps_done_again_with_other_numbers_begin_a_new_run_with_every_line(
    tmp_path: Path, lost: bool, steps: list[int]
) -> None:
    """As after a spike, when steps were passed over."""
    book = Book()
    sync = _sync(tmp_path, book)
    _write(tmp_path, 0, range(1, 6))
    sync.update()
    _write(tmp_path, 3, steps, salt=0.5)
    sync = _sync(tmp_path, book) if lost else sync
    sync.update()
    first, second = book.runs.values()
    assert [step for step, _ in first] == [1, 2, 3, 4, 5]
    assert all("speed/tokens_per_s" in values for _, values in second)
    assert _told(second) == _truth(tmp_path)
    assert book.openings[-1].after == 0
    _write(tmp_path, steps[-1], [9])
    _sync(tmp_path, book).update()
    assert _told(second) == _truth(tmp_path)
    assert len(book.runs) == 2


def test_a_tracker_added_later_gets_every_line_and_another_project_is_another_tracker(
    tmp_path: Path,
) -> None:
    _write(tmp_path, 0, range(1, 4))
    book = Book()
    _sync(tmp_path, book).update()
    other = WandB(project="other")
    _sync(tmp_path, book, other).update()
    assert book.steps() == [[1, 2, 3], [1, 2, 3]]
    assert tracker_label(other) != tracker_label(WandB())


@pytest.mark.parametrize("note", ["", "[]", '{"schema":2,"run_id":"../x","step":2,"sha256":""}'])
def test_a_damaged_note_begins_a_new_run(tmp_path: Path, note: str) -> None:
    book = Book()
    _write(tmp_path, 0, [1, 2])
    _sync(tmp_path, book).update()
    (path,) = (tmp_path / "log/trackers").glob("*.json")
    assert read_json(path)["step"] == 2
    path.write_text(note)
    _sync(tmp_path, book).update()
    assert book.steps() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("line", ["[1]", "{}", '{"step": "1"}', '{"step": -1}', "x", "[" * 9999])
def test_lines_that_no_run_writes_stop_the_tracker(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="has no step"):
        _sync(tmp_path, Book()).update()


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("1" * (1 << 21))
    with pytest.raises(DataError, match="1 MiB"):
        _sync(tmp_path, Book()).update()


def test_event_files_have_the_bytes_of_another_writer(tmp_path: Path) -> None:
    """Expected: records of tensorboardX 2.6.5 (its protocol buffers and its checksums)."""
    assert crc32c(b"123456789") == 0xE3069283
    with_inf = {"train/loss_nats": 0.1, "é": 1e300}
    file = EventFile(tmp_path, 300, 1.5)
    file.add(302, with_inf, 2.5)
    file.close()
    expected = (
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
        "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4"
        "31000000000000009d8383e909000000000000044010ae022a230a160a0f747261696e2f6c6f73735f6e617473"
        "15cdcccc3d0a090a02c3a9150000807ff63893d5"
    )
    assert next(tmp_path.iterdir()).read_bytes().hex() == expected


def _events(folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every summary, later starts replacing earlier ones as TensorBoard does."""
    found: dict[int, float] = {}
    for path in sorted((folder / "log/tensorboard").iterdir()):
        data, place = path.read_bytes(), 0
        while place + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = data[place + 12 : place + 12 + length]
            place += 16 + length
            step = event[10] if event[9] == 0x10 else 0  # these tests stay below 128
            if event.endswith(b"\x3a\x02\x08\x01"):
                found = {s: v for s, v in found.items() if s < step}
            where = event.find(b"train/loss_nats\x15")
            if where >= 0:
                assert step not in found
                (found[step],) = struct.unpack_from("<f", event, where + 16)
    return sorted(found.items())


def _as_float32(lines: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, struct.unpack("<f", struct.pack("<f", loss))[0]) for step, loss in lines]


def test_event_files_say_what_the_metrics_say_over_several_starts(tmp_path: Path) -> None:
    for after, steps, salt in (
        (0, range(1, 9), 0.0),
        (5, range(6, 12), 0.0),
        (9, range(10, 20), 1.0),
    ):
        before = (tmp_path / "metrics.jsonl").read_bytes() if after else b""
        with tracking((TensorBoard(), TensorBoard()), tmp_path, "x", NoProgress()):
            _write(tmp_path, after, steps, salt)
        assert _events(tmp_path) == _as_float32(_truth(tmp_path))
        assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before[:20])
    # One for each start, and one for the new run: a tracker named twice is one tracker.
    assert len(list((tmp_path / "log/tensorboard").iterdir())) == 4


def test_event_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    files = []
    for _ in range(11):
        EventFile(tmp_path, 0, 0.0).close()
        files.append(next(path for path in tmp_path.iterdir() if path not in files))
    assert files == sorted(files)


def test_the_real_tensorboard_reads_what_the_metrics_say(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for after, last, salt in ((0, 300, 0.0), (150, 400, 0.0), (9, 500, 1.0)):
        with tracking((TensorBoard(),), tmp_path, "x", NoProgress()):
            _write(tmp_path, after, range(after + 1, last + 1), salt)
        events = reader.EventAccumulator(str(tmp_path / "log/tensorboard"), {"scalars": 0})
        events.Reload()
        read = [(event.step, event.value) for event in events.Scalars("train/loss_nats")]
        assert read == _as_float32(_truth(tmp_path))


def _tracked_with(
    monkeypatch: pytest.MonkeyPatch, wandb: str, folder: Path
) -> tuple[list[str], ModuleType]:
    """The messages of a run whose wandb is this code, and the module."""
    package = ModuleType("wandb")
    exec(wandb, vars(package))
    monkeypatch.setitem(sys.modules, "wandb", package)
    talk = Talk()
    with tracking((WandB(),), folder, "demo/xielu", talk, {"seed": 28}):
        _write(folder, 0, [1, 2, 3])
    assert [step for step, _ in _truth(folder)] == [1, 2, 3]
    return talk.said, package


FAKE = """
import sys, threading
RUNS, FINISHED = [], []
class Settings(dict):
    def __init__(self, **values): super().__init__(values)
class Run:
    def __init__(self, values): self.logged = [values]; RUNS.append(self.logged)
    def log(self, values, step): self.logged.append([step, values])
    def finish(self): FINISHED.append(threading.current_thread().name)
def init(**values):
    print("Logged in as somebody"); print("and warned", file=sys.stderr)
    assert not sys.stderr.isatty()
    return Run(values)
"""


def test_wandb_gets_numbers_and_facts_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, package = _tracked_with(monkeypatch, FAKE, tmp_path)
    assert said == [] and package.FINISHED == ["tracker WandB"]
    ((opened, *logged),) = package.RUNS
    assert [step for step, _ in logged] == [1, 2, 3]
    assert opened["project"] == "stamm"
    assert opened["name"] == "demo/xielu"
    assert opened["config"] == {"seed": 28}
    assert opened["id"] == read_json(next((tmp_path / "log/trackers").glob("*.json")))["run_id"]
    settings = opened["settings"]
    assert all(settings[k] for k in settings if "disable" in k)
    assert not settings["x_save_requirements"]
    assert "".join(capsys.readouterr()) == ""
    print("the run's own result")
    assert capsys.readouterr().out == "the run's own result\n"


FAILURES = {
    "SystemExit: 3": f"{FAKE}\ndef init(**_): raise SystemExit(3)",
    "UsageError: key … is": f"{FAKE}\nclass UsageError(Exception): pass\ndef init(**_): raise UsageError('key {KEY} is\\n\\x1b[31m wrong')",
    "OSError: no network": f"{FAKE}\ndef log(self, values, step): raise OSError('no network')\nRun.log = log",
    "OSError: no server": f"{FAKE}\ndef finish(self): raise OSError('no server')\nRun.finish = finish",
}


@pytest.mark.parametrize("said", FAILURES)
def test_a_tracker_that_raises_is_reported_once_and_training_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    (message,), _ = _tracked_with(monkeypatch, FAILURES[said], tmp_path)
    assert said in message
    assert message.startswith("WandB is no longer updated: ")
    assert KEY not in message
    assert "\x1b" not in message
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_a_missing_package_is_reported_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    talk = Talk()
    with tracking((WandB(),), tmp_path, "x", talk):
        pass
    (message,) = talk.said
    assert "wandb is not installed" in message and "stamm[wandb]" in message


@pytest.mark.parametrize("blocked", ["init", "log", "finish"])
def test_a_tracker_that_blocks_never_stops_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blocked: str
) -> None:
    """Its thread waits for an event that is never set while the run ends."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    code = f"{FAKE}\nRELEASE = threading.Event()\ndef wait(*_, **__): RELEASE.wait()\n"
    code += "init = wait" if blocked == "init" else f"Run.{blocked} = wait"
    (message,), package = _tracked_with(monkeypatch, code, tmp_path)
    assert message.startswith("WandB has not received everything in time.")
    package.RELEASE.set()


def test_a_process_ends_although_a_tracker_blocks(tmp_path: Path) -> None:
    """Also where the package waits in a function that it registered with atexit."""
    script = (
        "import atexit, sys, threading\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from stamm.base import shutdown\n"
        "from stamm.base.console import NoProgress\n"
        "from stamm.runs import tracking\n"
        "from stamm.runs.tracker_config import WandB\n"
        "wait = lambda *_, **__: threading.Event().wait()\n"
        "sys.modules['wandb'] = SimpleNamespace(Settings=dict, init=wait)\n"
        "atexit.register(wait)\n"
        "tracking.PATIENCE_S = shutdown.EXIT_FUNCTIONS_S = 0.1\n"
        "with tracking.tracking((WandB(),), Path(sys.argv[1]), 'x', NoProgress()): pass\n"
        "shutdown.exit_immediately(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == 7


def test_what_looks_like_a_key_is_not_repeated() -> None:
    hidden = without_secrets(f"api_key={KEY} and hf_{'aB3' * 10} for https://x.y/?t={'Z9_-' * 8}!")
    assert hidden == "api_key=… and … for https://x.y/?t=…!"
    kept = "CommError: run demo/xielu was not found (error 404) in WandbServiceConnection"
    assert without_secrets(kept) == kept
    assert len(without_secrets("1a " * 10**6)) <= 300


def test_the_real_wandb_keeps_an_offline_run_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    talk = Talk()
    folder = tmp_path / "run"
    with tracking((WandB(mode="offline"),), folder, "demo/xielu", talk, {"seed": 28}):
        _write(folder, 0, [1, 2, 3])
    assert talk.said == []
    (stored,) = folder.glob("log/wandb/offline-run-*/*.wandb")
    assert stored.read_bytes().count(b"train/loss_nats") >= 3
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_the_real_trackio_holds_what_the_metrics_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    talk, folder = Talk(), tmp_path / "run"
    for after, last in ((0, 5), (3, 9)):
        with tracking((Trackio(project="p"),), folder, "demo/xielu", talk, {"seed": 28}):
            _write(folder, after, range(after + 1, last + 1))
    assert talk.said == []
    read = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S\n"
        "print(json.dumps([[r, S.get_logs('p', r)] for r in S.get_runs('p')]))"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    ((name, logs),) = json.loads(done.stdout.splitlines()[-1])
    assert name.startswith("demo/xielu ")
    assert sorted((li["step"], li["train/loss_nats"]) for li in logs) == _truth(folder)
