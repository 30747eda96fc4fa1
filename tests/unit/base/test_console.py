"""Progress on a terminal and in a log file."""

from __future__ import annotations

import io

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
            console.say("half")
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
    console.say("after")
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
    console.say("half")
    console.end()
    lines = log.getvalue().splitlines()
    assert [line[20:] for line in lines] == ["train", "half", "train: done in 0.0 s"]
    assert lines[0][:4].isdigit()
