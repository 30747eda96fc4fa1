"""A tracker shows what metrics.jsonl says: every line, once, however often the run was interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import from_plain, override, to_plain
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.runs import tracker_config as module
from stamm.runs import tracker_process as process
from stamm.runs.event_file import EventFile, crc32c
from stamm.runs.metrics import MetricsFile, read_metrics
from stamm.runs.tracker_config import Request, TensorBoard, Trackio, WandB, mirrored
from stamm.runs.tracker_process import Copy, label, without_secrets
from stamm.runs.trackers import Opening, Tracker

KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    mirrors: tuple[TensorBoard | Trackio | WandB, ...] = ()


class Book:
    """A tracker of its own: what each run in it was told."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.openings: list[Opening] = []

    def __call__(self, opening: Opening) -> Tracker:
        self.openings.append(opening)
        lines = self.runs.setdefault(opening.code, [])

        class Run:
            def tell(self, step: int, values: Mapping[str, float]) -> None:
                lines.append((step, dict(values)))

            def flush(self) -> None: ...

            def end(self) -> None: ...

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


def _copy(folder: Path, book: Book) -> Copy:
    return Copy(Request(mirror=WandB(), folder=str(folder), name="demo/xielu"), {"a": 1}, book)


def _truth(folder: Path) -> list[tuple[int, float]]:
    return [(li["step"], li["train/loss_nats"]) for li in read_metrics(folder / "metrics.jsonl")]


def _told(lines: list[tuple[int, dict[str, float]]]) -> list[tuple[int, float]]:
    return [(step, values["train/loss_nats"]) for step, values in lines]


def test_mirrors_are_chosen_like_any_configuration() -> None:
    line = ["mirrors=TensorBoard,WandB,Trackio", "mirrors.1.mode=offline", "mirrors.2.space=me/it"]
    recipe = override(Recipe(), line)
    chosen = (TensorBoard(), WandB(mode="offline"), Trackio(space="me/it"))
    assert recipe == Recipe(mirrors=chosen)
    assert from_plain(Recipe, to_plain(recipe)) == recipe
    for wrong in (
        ["mirrors=Wandb2"],
        [line[0], "mirrors.1.project=a/b"],
        [line[0], "mirrors.2.space=me"],
    ):
        with pytest.raises(ConfigError):
            override(Recipe(), wrong)


def test_each_step_is_told_once_with_its_speed_as_the_files_grow(tmp_path: Path) -> None:
    book = Book()
    copy = _copy(tmp_path, book)
    copy.update()
    _write(tmp_path, 0, [1, 2])
    copy.update()
    assert book.steps() == [[1, 2]]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_line(3)) + '\n{"step": 4, "tr')
    copy.update()
    assert book.steps() == [[1, 2]]  # its speed is not known yet
    copy.update(last=True)
    assert book.steps() == [[1, 2, 3]]
    told = next(iter(book.runs.values()))
    assert told[0][1].keys() == {"train/loss_nats", "speed/tokens_per_s"}
    assert told[2][1].keys() == {"train/loss_nats"}
    assert book.openings[0].name == "demo/xielu"
    assert book.openings[0].facts == {"a": 1}


def test_what_waited_long_is_told_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "AT_ONCE", 4)
    book = Book()
    copy = _copy(tmp_path, book)
    _write(tmp_path, 0, range(1, 20))
    copy.update()
    assert book.steps() == [[1, 2, 3, 4]]
    _copy(tmp_path, book).update()
    assert book.steps() == [list(range(1, 9))]
    _copy(tmp_path, book).update(last=True)
    assert book.steps() == [list(range(1, 20))]


@pytest.mark.parametrize("seed", range(8))
def test_a_run_killed_anywhere_is_told_once_by_mirrors_killed_anywhere(
    tmp_path: Path, seed: int
) -> None:
    """Same bytes when it goes on: no step twice, none left out, one run in the tracker."""
    draw = random.Random(seed)
    book, done = Book(), 0
    copy = _copy(tmp_path, book)
    while done < 40:
        saved = draw.randint(max(done - 9, 0), done)
        done = min(saved + draw.randint(1, 15), 40)
        _write(tmp_path, saved, range(saved + 1, done + 1))
        if draw.random() < 0.3:
            copy = _copy(tmp_path, book)  # the process that kept it was lost
        if draw.random() < 0.7:
            copy.update()
    copy.update(last=True)
    assert book.steps() == [list(range(1, 41))]
    assert _told(next(iter(book.runs.values()))) == _truth(tmp_path)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("steps", [[4, 5, 6, 7], [6, 7], [5], [4, 6]])
def test_steps_done_again_with_other_numbers_begin_a_new_run_with_every_line(
    tmp_path: Path, lost: bool, steps: list[int]
) -> None:
    """As after a spike, when steps were passed over."""
    book = Book()
    copy = _copy(tmp_path, book)
    _write(tmp_path, 0, range(1, 6))
    copy.update()
    _write(tmp_path, 3, steps, salt=0.5)
    copy = _copy(tmp_path, book) if lost else copy
    copy.update()
    first, second = book.runs.values()
    assert [step for step, _ in first] == [1, 2, 3, 4, 5]
    assert all("speed/tokens_per_s" in values for _, values in second)
    assert _told(second) == _truth(tmp_path)
    assert book.openings[-1].after == 0
    _write(tmp_path, steps[-1], [9])
    _copy(tmp_path, book).update()
    assert _told(second) == _truth(tmp_path)
    assert len(book.runs) == 2


def test_a_mirror_chosen_later_gets_every_line_and_another_project_is_another_mirror(
    tmp_path: Path,
) -> None:
    _write(tmp_path, 0, range(1, 4))
    book = Book()
    _copy(tmp_path, book).update()
    asked = Request(mirror=WandB(project="other"), folder=str(tmp_path), name="x")
    Copy(asked, {}, book).update()
    assert book.steps() == [[1, 2, 3], [1, 2, 3]]
    names = {label(asked), label(replace(asked, mirror=WandB())), label(replace(asked, name="y"))}
    assert len(names) == 2


@pytest.mark.parametrize("note", ["", "[]", '{"schema":1,"code":"../x","told":2,"sha256":""}'])
def test_a_damaged_note_begins_a_new_run(tmp_path: Path, note: str) -> None:
    book = Book()
    _write(tmp_path, 0, [1, 2])
    _copy(tmp_path, book).update()
    (path,) = (tmp_path / "log/mirrors").glob("*.json")
    assert read_json(path)["told"] == 2
    path.write_text(note)
    _copy(tmp_path, book).update()
    assert book.steps() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("line", ["[1]", "{}", '{"step": "1"}', '{"step": -1}', "x", "[" * 9999])
def test_lines_that_no_run_writes_end_the_mirror(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="has no step"):
        _copy(tmp_path, Book()).update()


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("1" * (1 << 21))
    with pytest.raises(DataError, match="1 MiB"):
        _copy(tmp_path, Book()).update()


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
        with mirrored((TensorBoard(), TensorBoard()), tmp_path, "x", NoProgress()):
            _write(tmp_path, after, steps, salt)
        assert _events(tmp_path) == _as_float32(_truth(tmp_path))
        assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before[:20])
    # One for each start, and one for the new run: a mirror named twice is one mirror.
    assert len(list((tmp_path / "log/tensorboard").iterdir())) == 4


def test_event_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    files = []
    for _ in range(11):
        EventFile(tmp_path, 0, 0.0).close()
        files.append(next(path for path in tmp_path.iterdir() if path not in files))
    assert files == sorted(files)


def test_a_mirror_waits_for_that_of_the_start_before(tmp_path: Path) -> None:
    asked = Request(mirror=TensorBoard(), folder=str(tmp_path), name="x")
    path = tmp_path / "log/mirrors" / f"{label(asked)}.lock"
    path.parent.mkdir(parents=True)
    told: list[bool] = []
    with path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def release() -> None:
            told.append((tmp_path / "log/tensorboard").exists())
            fcntl.flock(held, fcntl.LOCK_UN)

        timer = threading.Timer(2.0, release)
        with mirrored((TensorBoard(),), tmp_path, "x", NoProgress()):
            _write(tmp_path, 0, range(1, 8))
            timer.start()
        timer.join()
    assert told == [False]
    assert _events(tmp_path) == _as_float32(_truth(tmp_path))


def test_the_real_tensorboard_reads_what_the_metrics_say(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for after, last, salt in ((0, 300, 0.0), (150, 400, 0.0), (9, 500, 1.0)):
        with mirrored((TensorBoard(),), tmp_path, "x", NoProgress()):
            _write(tmp_path, after, range(after + 1, last + 1), salt)
        events = reader.EventAccumulator(str(tmp_path / "log/tensorboard"), {"scalars": 0})
        events.Reload()
        read = [(event.step, event.value) for event in events.Scalars("train/loss_nats")]
        assert read == _as_float32(_truth(tmp_path))


def _all_told(folder: Path) -> bool:
    notes = list((folder / "log/mirrors").glob("*.json"))
    return bool(notes) and read_json(notes[0])["told"] == 7


def test_what_a_killed_run_had_written_is_still_told(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from stamm.base.console import NoProgress\n"
        "from stamm.runs.tracker_config import TensorBoard, mirrored\n"
        "with mirrored((TensorBoard(),), Path(sys.argv[1]), 'x', NoProgress()):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    started = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        started, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ready\n"
        _write(tmp_path, 0, range(1, 8))
        os.killpg(killed.pid, signal.SIGKILL)  # the group, as a terminal or a launcher does
    until = time.monotonic() + 60
    while not _all_told(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert _events(tmp_path) == _as_float32(_truth(tmp_path))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose packages are found before the installed ones."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    return folder


def _mirror_with(packages: Path, wandb: str, folder: Path) -> list[str]:
    """What is said of a run whose wandb is this code."""
    (packages / "wandb.py").write_text(wandb)
    talk = Talk()
    with mirrored((WandB(),), folder, "demo/xielu", talk, {"seed": 28}):
        _write(folder, 0, [1, 2, 3])
    assert [step for step, _ in _truth(folder)] == [1, 2, 3]
    return talk.said


FAKE = """
import json, sys
from pathlib import Path
class Settings(dict):
    def __init__(self, **values): super().__init__(values)
class Run:
    def __init__(self, values): self.told = [values]
    def log(self, values, step): self.told.append([step, values])
    def finish(self): (Path(__file__).parent / "told.json").write_text(json.dumps(self.told))
def init(**values):
    print("Logged in as somebody"); print("and warned", file=sys.stderr)
    return Run(values)
"""


def test_wandb_gets_numbers_and_facts_and_no_more(
    packages: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert _mirror_with(packages, FAKE, folder) == []
    opened, *told = json.loads((packages / "told.json").read_text())
    assert [step for step, _ in told] == [1, 2, 3]
    assert opened["project"] == "stamm"
    assert opened["name"] == "demo/xielu"
    assert opened["config"] == {"seed": 28}
    assert opened["id"] == read_json(next((folder / "log/mirrors").glob("*.json")))["code"]
    settings = opened["settings"]
    assert all(settings[k] for k in settings if "disable" in k)
    assert not settings["x_save_requirements"]
    assert "somebody" not in "".join(capfd.readouterr())


FAILURES = {
    "is not installed": "raise ImportError('no')",
    "its process ended with status": "import os; os._exit(3)",
    "UsageError: key … is": f"{FAKE}\nclass UsageError(Exception): pass\ndef init(**_): raise UsageError('key {KEY} is\\n\x1b[31m wrong')",
    "OSError: no network": f"{FAKE}\ndef log(self, values, step): raise OSError('no network')\nRun.log = log",
}


@pytest.mark.parametrize("said", FAILURES)
def test_a_mirror_that_fails_is_told_once_and_left(
    packages: Path, tmp_path: Path, said: str
) -> None:
    folder = tmp_path / "run"
    (told,) = _mirror_with(packages, FAILURES[said], folder)
    assert said in told
    assert told.startswith("The WandB mirror is left: ")
    assert KEY not in told
    assert "\x1b" not in told
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_the_end_of_a_run_waits_for_no_tracker_that_hangs(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    hangs = f"{FAKE}\nimport time\ndef init(**_): time.sleep(20)"
    began = time.monotonic()
    (said,) = _mirror_with(packages, hangs, tmp_path / "run")
    assert said == "WandB is not up to date yet: its mirror goes on sending."
    assert time.monotonic() - began < 15


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
    with mirrored((WandB(mode="offline"),), folder, "demo/xielu", talk, {"seed": 28}):
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
        with mirrored((Trackio(project="p"),), folder, "demo/xielu", talk, {"seed": 28}):
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
