"""`stamm run` of a small recipe, begun, disturbed and ended; what undisturbed runs leave is kept."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import contents, environment
from tests.forked import Forked, Parent

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
_WHOLE: dict[tuple[str, ...], dict[str, bytes]] = {}


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

    def __init__(self, parent: Parent, place: Path, pack: Path) -> None:
        self.place, self.pack = place, pack
        self._parent = parent
        self._running: Forked | None = None
        self.recipe()

    def recipe(self, more: str = "") -> None:
        """Write the recipe, with `more` lines before it."""
        self._recipe = RECIPE.format(more=more)
        (self.place / "mine.py").write_text(self._recipe)

    def begin(self, out: str, *changes: str, largest: int = 0) -> None:
        """Start a run; `largest` bytes may be written into a file."""
        words = ["stamm", "run", "mine.py", f"pack={self.pack}", "--out", out, *changes]
        self._errors = self.place / "stderr"
        self._errors.unlink(missing_ok=True)
        self._running = self._parent.start(
            words, self.place, environment(), self.place / "stdout", self._errors, largest
        )

    def send(self, number: signal.Signals) -> None:
        """A signal to the run, if it is still there."""
        assert self._running is not None
        self._running.send_signal(number)

    def end(self) -> Done:
        """Wait for the run."""
        assert self._running is not None
        code = self._running.wait()
        said = self._errors.read_text()
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
        """What an uninterrupted run leaves; the same run is made once for all tests."""
        key = (self._recipe, str(self.pack), *changes)
        if key not in _WHOLE or out != "whole":
            done = self.run(out, *changes)
            assert done.code == 0, done.said
            _WHOLE[key] = contents(self.place / out)
        return _WHOLE[key]


def lines_of(run: Path) -> int:
    metrics = run / ARM / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def same(found: Path, expected: dict[str, bytes]) -> None:
    """See that a run left the expected files, to the bit."""
    left = contents(found)
    assert left.keys() == expected.keys()
    assert [name for name in left if left[name] != expected[name]] == []
