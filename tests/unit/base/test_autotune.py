"""Measured choices: kept by content and processor, made again when damaged."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stamm.base import autotune
from stamm.base.autotune import Measurement, measured, measurements


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A cache of the test's own, and how often each implementation was called."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return {"slow": 0, "fast": 0}


def arms(calls: dict[str, int]) -> dict[str, Callable[[], None]]:
    def call(name: str, seconds: float) -> None:
        calls[name] += 1
        compute(seconds)

    return {"slow": lambda: call("slow", 0.004), "fast": lambda: call("fast", 0.0)}


def compute(seconds: float) -> None:
    """Keep the processor busy for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_clearly_faster_one_is_chosen_and_measured_once(
    calls: dict[str, int], tmp_path: Path
) -> None:
    first = measured("op", arms(calls), content=1, processor="p")
    assert first.chosen == "fast" and first.seconds["slow"] >= 0.004
    before = dict(calls)
    assert measured("op", arms(calls), content=1, processor="p") == first
    assert calls == before
    assert measurements("p") == [first] and measurements("another") == []


@pytest.mark.parametrize("change", ["content", "processor", "operation"])
def test_another_content_or_processor_is_measured_again(change: str, calls: dict[str, int]) -> None:
    measured("op", arms(calls), content=1, processor="p")
    before = calls["fast"]
    operation = "other" if change == "operation" else "op"
    content, processor = 2 if change == "content" else 1, "q" if change == "processor" else "p"
    measured(operation, arms(calls), content=content, processor=processor)
    assert calls["fast"] > before


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1}', "null", "negative"])
def test_a_damaged_measurement_is_made_again(
    damage: str, calls: dict[str, int], tmp_path: Path
) -> None:
    first = measured("op", arms(calls), content=1, processor="p")
    (path,) = (tmp_path / "stamm" / "autotune").glob("*.json")
    if damage == "negative":
        held = json.loads(path.read_text())
        held["seconds"] = {"slow": -1.0, "fast": 1.0}
        damage = json.dumps(held)
    path.write_text(damage)
    again = measured("op", arms(calls), content=1, processor="p")
    assert again.chosen == first.chosen == "fast"
    assert measurements("p") == [again]


def test_a_cache_that_cannot_be_written_costs_only_the_measurement(
    calls: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "stamm").write_text("a file where a folder should be")
    assert measured("op", arms(calls), content=1, processor="p").chosen == "fast"
    assert measurements("p") == []


@pytest.mark.parametrize(("theirs", "chosen"), [(1.0, "ours"), (0.96, "ours"), (0.94, "theirs")])
def test_the_first_is_taken_unless_another_is_clearly_faster(theirs: float, chosen: str) -> None:
    found = Measurement(operation="op", processor="p", seconds={"ours": 1.0, "theirs": theirs})
    assert found.chosen == chosen


def test_waiting_is_not_the_implementations_time(calls: dict[str, int]) -> None:
    """On a busy machine one call or the other waits for the processor."""
    found = measured(
        "op",
        {"first": lambda: compute(0.004), "waits": lambda: time.sleep(0.02)},
        content=1,
        processor="p",
    )
    assert found.chosen == "waits" and found.seconds["waits"] < 0.004


def test_rounds_that_disagree_are_repeated_and_not_kept(
    calls: dict[str, int], tmp_path: Path
) -> None:
    times = itertools.cycle([0.004, 0.0])

    def unsteady() -> None:
        calls["fast"] += 1
        compute(next(times))

    arms = {"first": lambda: compute(0.002), "unsteady": unsteady}
    found = measured("op", arms, content=1, processor="p")
    assert not found.sure and calls["fast"] == 1 + 3 * 7
    assert measurements("p") == []
    measured("op", arms, content=1, processor="p")
    assert calls["fast"] == 2 * (1 + 3 * 7)


def test_a_measurement_keeps_which_one_was_preferred(calls: dict[str, int]) -> None:
    arms = {name: lambda: compute(0.002) for name in ("a", "b")}
    measured("op", arms, content=1, processor="p")
    preferred = measured("op", dict(reversed(arms.items())), content=1, processor="p")
    assert list(preferred.seconds) == ["b", "a"]


def test_one_round_does_not_agree_with_itself(
    calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls so long that one of each takes all the time, as on a machine with many threads."""
    monkeypatch.setattr(autotune, "_SECONDS", 0.001)
    times = itertools.cycle([0.004, 0.0])

    def unsteady() -> None:
        calls["fast"] += 1
        compute(next(times))

    arms = {"first": lambda: compute(0.002), "unsteady": unsteady}
    found = measured("op", arms, content=1, processor="p")
    assert not found.sure and calls["fast"] == 1 + 3 * 3
    assert measurements("p") == []


def test_work_shared_by_two_threads_is_faster_than_by_one(calls: dict[str, int]) -> None:
    half, whole = bytes(2**22), bytes(2**23)

    def in_parallel() -> None:
        thread = threading.Thread(target=hashlib.sha256, args=[half])
        thread.start()
        hashlib.sha256(half)
        thread.join()

    arms = {"one": lambda: hashlib.sha256(whole), "two": in_parallel}
    found = measured("op", arms, content=1, processor="p")
    assert found.sure and found.chosen == "two"
