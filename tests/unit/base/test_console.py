"""Progress on a terminal and in a log file."""

from __future__ import annotations

import io
import itertools
import re
import threading

import pytest

from stamm.base.console import Console


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _work(stream: io.StringIO) -> str:
    clock = Clock()
    console = Console(stream, clock)
    console.prefix = "[2/9] "
    console.begin("train\x1b[31m", 100, "steps")
    for step in range(1, 101):
        clock.now += 1.0
        console.advance(step, "loss 4.20")
        if step == 50:
            console.log("half")
    console.end("loss 4.20")
    return stream.getvalue()


def test_a_log_gets_one_plain_line_per_interval_with_the_time_left() -> None:
    text = _work(io.StringIO())
    lines = text.splitlines()
    assert "\x1b" not in text
    assert 20 <= len(lines) <= 24
    assert "[2/9] train\\x1b[31m: 50/100 steps, 50 s left, loss 4.20" in lines
    assert lines[-1] == "[2/9] train\\x1b[31m: done in 1 min 40 s, loss 4.20"


def test_a_terminal_gets_a_bar_and_a_last_line() -> None:
    text = _work(Terminal())
    assert "━" in text
    assert "half" in text
    assert text.splitlines()[-1].endswith("done in 1 min 40 s, loss 4.20")


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_closing_in_the_middle_of_a_task_shows_the_cursor_again() -> None:
    stream = Terminal()
    console = Console(stream, Clock())
    console.begin("train", 100, "steps")
    console.advance(3)
    hidden = stream.getvalue()
    assert hidden.count(HIDE) > hidden.count(SHOW)
    console.close()
    assert stream.getvalue().rindex(SHOW) > stream.getvalue().rindex(HIDE)
    assert "done" not in stream.getvalue()
    ended = stream.getvalue()
    console.close()
    assert stream.getvalue() == ended
    console.log("after")
    assert stream.getvalue().endswith("after\n")


def test_a_task_begun_before_the_last_one_ended_leaves_no_cursor_hidden() -> None:
    stream = Terminal()
    console = Console(stream, Clock())
    console.begin("first", 2, "steps")
    console.begin("second", 2, "steps")
    console.end()
    assert stream.getvalue().count(HIDE) == stream.getvalue().count(SHOW) == 2


def test_the_log_gets_every_line_with_its_time() -> None:
    log = io.StringIO()
    console = Console(Terminal(), Clock(), log)
    console.begin("train", 2, "steps")
    console.log("half")
    console.end()
    lines = log.getvalue().splitlines()
    assert [line[20:] for line in lines] == ["train", "half", "train: done in 0.0 s"]
    assert lines[0][:4].isdigit()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_moving_line_is_one_line_however_narrow_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, clock = Terminal(), Clock()
    console = Console(stream, clock)
    console.begin("train xielu", 20000, "steps")
    note = "loss 3.214, 12,345 tokens/s, 34% MFU, learning rate 3.0e-04, saved at 1200"
    for step in range(1, 9):
        clock.now += 1.0
        console.advance(step, note)
    drawn = stream.getvalue()
    assert "\n" not in drawn
    assert "8/20000 steps" in drawn
    assert (note in drawn) == (columns == 200)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).split("\r")
    assert max(map(len, lines)) <= columns
    assert all(re.match("train xielu [━╸╺]{8}", line) for line in lines[1:])
    assert ("loss 3.214" in drawn) == (columns > 40)
    assert "…" not in drawn
    console.close()


def test_plain_lines_get_rarer_and_the_log_has_them_under_a_bar_too() -> None:
    for stream in (io.StringIO(), Terminal()):
        clock, log = Clock(), io.StringIO()
        console = Console(stream, clock, log)
        console.begin("train", 2000, "steps")
        for step in range(1, 2001):
            clock.now += 5.0
            console.advance(step)
        steps = [int(step) for step in re.findall(r"train: (\d+)/2000 steps", log.getvalue())]
        gaps_s = [5 * (b - a) for a, b in itertools.pairwise(steps)]
        assert gaps_s == sorted(gaps_s)
        assert (gaps_s[0], gaps_s[-1]) == (5, 60)
        assert len(steps) < 500


def test_what_is_left_follows_the_share_and_the_pace_of_late() -> None:
    """Steps that get four times as long in the middle, as when a batch grows."""
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock)
    console.begin("train", 4000, "steps")
    work = 0
    for step in range(1, 4001):
        part = 1 if step <= 2000 else 4
        clock.now += part
        work += part
        console.advance(step, share=work / 10_000)
    said = [line for line in stream.getvalue().splitlines() if "left" in line]
    for line in said:
        step = int(re.search(r": (\d+)/", line)[1])  # type: ignore[index]
        left = 10_000 - (step if step <= 2000 else 2000 + 4 * (step - 2000))
        hours, minutes, seconds = (re.search(rf"([\d.]+) {u}", line) for u in ("h", "min", "s[ ,]"))
        told = sum(float(m[1]) * f for m, f in ((hours, 3600), (minutes, 60), (seconds, 1)) if m)
        assert told == pytest.approx(left, abs=61), line
    assert len(said) > 100


def test_a_machine_that_gets_slow_is_believed_after_some_minutes() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock)
    console.begin("train", 10_000, "steps")
    for step in range(1, 5001):
        clock.now += 0.1 if step <= 4000 else 1.0
        console.advance(step)
    assert stream.getvalue().endswith("train: 4995/10000 steps, 1 h 23 min left\n")


def test_threads_may_speak_while_a_bar_moves() -> None:
    stream, log = Terminal(), io.StringIO()
    console = Console(stream, Clock(), log)
    console.begin("train", 50, "steps")
    speakers = [
        threading.Thread(target=lambda: [console.log("word") for _ in range(50)]) for _ in range(4)
    ]
    for speaker in speakers:
        speaker.start()
    for step in range(50):
        console.advance(step)
    for speaker in speakers:
        speaker.join()
    console.end()
    assert [line[20:] for line in log.getvalue().splitlines()].count("word") == 200
