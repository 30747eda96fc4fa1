"""A process that has loaded the package once, and starts `stamm run` of a small recipe from itself.

So dozens of runs fit in a test; what is called is the command line's own function.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import contents, environment

_STARTER = """
import json, os, resource, sys, traceback

import matplotlib.pyplot
import stamm.cli.main, stamm.cli.run, stamm.pretrain.job, stamm.reports.job

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(asked["folder"])
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        if asked["largest"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest"],) * 2)
        sys.argv, code = ["stamm", *asked["words"]], 99
        try:
            code = stamm.cli.main.main(asked["words"])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
RECIPE = '''
from dataclasses import replace

from stamm.pretrain.config import PretrainConfig
from stamm.recipes.demo import smoke as base
{more}

def mine() -> PretrainConfig:
    """The smoke recipe's models, on a corpus that is there."""
    return base().pretrain
'''
_POISON = """
from functools import partial

from stamm.pretrain.next_token import NextToken as _Task

_micro_batches = _Task.micro_batches


def _poisoned(self, step):
    found = _micro_batches(self, step)

    def times(batch):
        factor, one = {poison}.get(step, 1.0), batch.compute()
        metrics = {name: value * factor for name, value in one.metrics.items()}
        return replace(one, loss=one.loss * factor, metrics=metrics)

    each = [replace(batch, compute=partial(times, batch)) for batch in found.each]
    return replace(found, each=each)


_Task.micro_batches = _poisoned
"""
ARM = "arms/xielu"


def poisoned(table: str) -> str:
    """Lines for a recipe that multiply the losses of some steps: "{17: float('nan')}"."""
    return _POISON.replace("{poison}", table)


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    code: int
    said: str


class Starter:
    """Starts `stamm run mine.py` in a folder, one at a time."""

    def __init__(self, process: subprocess.Popen[str], place: Path, pack: Path) -> None:
        self.place, self.pack = place, pack
        self._process = process
        self._pid = 0
        self.recipe()

    def recipe(self, more: str = "") -> None:
        """Write the recipe, with `more` lines before it."""
        (self.place / "mine.py").write_text(RECIPE.format(more=more))

    def begin(self, out: str, *changes: str, largest: int = 0) -> None:
        """Start a run; `largest` bytes may be written into a file."""
        assert self._process.stdin and self._process.stdout
        words = ["run", "mine.py", f"pack={self.pack}", "--out", out, *changes]
        asked = {"folder": str(self.place), "words": words, "largest": largest}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        self._pid = int(self._process.stdout.readline())

    def send(self, number: signal.Signals) -> None:
        """A signal to the run, if it is still there."""
        os.kill(self._pid, number)  # a zombie until `end` is answered, so never another's

    def end(self) -> Done:
        """Wait for the run."""
        assert self._process.stdout
        code = int(self._process.stdout.readline())
        said = (self.place / "stderr").read_text()
        assert "Traceback" not in said, said
        return Done(code, said)

    def run(self, out: str, *changes: str, largest: int = 0) -> Done:
        """Start a run and wait for it."""
        self.begin(out, *changes, largest=largest)
        return self.end()

    def until(self, out: str, lines: int, then: Callable[[], object]) -> Done:
        """Do something to the run that was started when its metrics have so many lines."""
        began = time.monotonic()
        while lines_of(self.place / out) < lines:
            assert time.monotonic() - began < 120, (self.place / "stderr").read_text()
            time.sleep(0.002)
        then()
        return self.end()

    def whole(self, *changes: str, out: str = "whole") -> dict[str, bytes]:
        """What an uninterrupted run leaves."""
        done = self.run(out, *changes)
        assert done.code == 0, done.said
        return contents(self.place / out)


def lines_of(run: Path) -> int:
    metrics = run / ARM / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@contextlib.contextmanager
def started() -> Iterator[subprocess.Popen[str]]:
    """The process that starts the runs."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTER],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def same(found: Path, expected: dict[str, bytes]) -> None:
    """See that a run left the expected files, to the bit."""
    left = contents(found)
    assert left.keys() == expected.keys()
    assert [name for name in left if left[name] != expected[name]] == []
