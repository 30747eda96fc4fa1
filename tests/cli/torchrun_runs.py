"""Runs of a small recipe in one process, or in several that torchrun starts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.starter import ARM, RECIPE, lines_of
from tests.conftest import environment
from tests.forked import Parent

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "stamm",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A folder with the recipe, and the corpus that its runs learn from."""

    folder: Path
    pack: Path
    parent: Parent

    def recipe(self, more: str = "") -> None:
        """Write the recipe, with `more` lines before it."""
        (self.folder / "mine.py").write_text(RECIPE.format(more=more))

    def run(self, count: int, out: str, *changes: str) -> subprocess.CompletedProcess[str]:
        """`stamm run` in `count` forked processes, to its end."""
        words = ["stamm", *self._words(out, *changes)]
        return self.parent.run(words, self.folder, environment(), ranks=count)

    def torchrun(self, out: str, *changes: str) -> subprocess.CompletedProcess[str]:
        """`stamm run` in two processes that torchrun starts, to its end."""
        return subprocess.run(
            [*TORCHRUN, *self._words(out, *changes)],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    @contextlib.contextmanager
    def begun(self, out: str, lines: int, *changes: str) -> Iterator[subprocess.Popen[bytes]]:
        """`stamm run` under torchrun, until its metrics have so many lines; says into `stderr`."""
        with (
            (self.folder / "stderr").open("w") as said,
            subprocess.Popen(
                [*TORCHRUN, *self._words(out, *changes)],
                cwd=self.folder,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=said,
            ) as started,
        ):
            began = time.monotonic()
            while started.poll() is None and lines_of(self.folder / out) < lines:
                assert time.monotonic() - began < 200
                time.sleep(0.002)
            assert started.poll() is None, self.said()
            yield started

    def said(self) -> str:
        """What the last run that was begun wrote to stderr."""
        return (self.folder / "stderr").read_text()

    def metrics(self, out: str) -> list[dict[str, Any]]:
        """A line for each step of a run."""
        lines = (self.folder / out / ARM / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self, out: str) -> list[float]:
        """The loss of each step of a run, nats."""
        return [line["train/loss_nats"] for line in self.metrics(out)]

    def of_rank(self, rank: int) -> int:
        """The process of that rank which works in the folder."""
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and (folder / "cwd").resolve() == self.folder.resolve():
                    told = (folder / "environ").read_bytes().split(b"\0")
                    if f"RANK={rank}".encode() in told:
                        return int(folder.name)
            except OSError:
                continue
        raise AssertionError(f"no process of rank {rank} in {self.folder}")

    def _words(self, out: str, *changes: str) -> list[str]:
        return ["run", "mine.py", f"pack={self.pack}", "--out", out, *changes]
