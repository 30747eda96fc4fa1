"""Peak memory of each step of a corpus over its size, of the driver and of its workers apart.

The corpus is made of the pages of some archives: a page has paragraphs drawn from all of theirs,
each without a third of its words, so that none is a duplicate. It is built at 1, 4 and 16 times its
size by `stamm run corpus.demo` with two workers. Either its files grow, or there are more of them:
  files    more archives of one size: what grows is held for each shard or each document of all
  shards   two archives that grow: what grows is held for each document of a shard

A peak is VmHWM of /proc, which is set back for the driver when a step begins; of a worker the
highest that any of them had in the step.

Run      python -m bench.corpus_memory FILE.warc.gz ... [--grow files] [--pages 250]
         [--sizes 1 4 16] [--out FILE.jsonl] [--changes key=value ...]
Needs    Linux
Prints   a table in MiB; with --out appends one JSON line with the machine and the commit
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from stamm.corpus.documents import InputRecord
from stamm.corpus.extract import extract
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.warc import read_archive
from stamm.runs.manifest import environment

WORKERS = 2
PARAGRAPHS = 60
SHORTEST = 80
CHANGES = (
    "corpus.probes=none",
    "corpus.canaries=none",
    "corpus.consent.robots=",
    f"execution.workers={WORKERS}",
)
STEP = re.compile(r"\[(\d+)/\d+\] ([\w ]+)")
EVERY_S = 0.02


def paragraphs(files: list[str]) -> list[list[str]]:
    """The words of every paragraph of some archives."""
    limits = ReadLimits()
    found = []
    for file in files:
        for record in read_archive(file, Path(file), limits):
            if isinstance(record, InputRecord) and record.is_html:
                text = extract(record.content, record.charset, limits).text
                found += [line.split() for line in text.split("\n") if len(line) >= SHORTEST]
    return found


def write_archive(path: Path, pool: list[list[str]], pages: int) -> None:
    """An archive of pages made of paragraphs of the pool; the file's name is the seed."""
    dice = random.Random(path.name)
    with gzip.open(path, "wb", compresslevel=1) as archive:
        for number in range(pages):
            drawn = dice.choices(pool, k=dice.randint(PARAGRAPHS // 4, PARAGRAPHS))
            body = "".join(
                f"<p>{' '.join(word for word in words if dice.random() > 1 / 3)}</p>\n"
                for words in drawn
            )
            http = (
                "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
                f"<!DOCTYPE html><html lang='en'><body><main>{body}</main></body></html>"
            ).encode()
            archive.write(
                "WARC/1.0\r\nWARC-Type: response\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
                f"WARC-Target-URI: https://{path.stem}.example/{number}\r\n"
                "Content-Type: application/http; msgtype=response\r\n"
                f"Content-Length: {len(http)}\r\n\r\n".encode()
                + http
                + b"\r\n\r\n"
            )


class Watch:
    """Looks at a process and its children until it ends. Peaks in MiB, by step and by part."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.peaks: dict[str, dict[str, float]] = {}
        self.errors: list[str] = []
        self._driver = process.pid
        self._process = process
        self._step = "start"
        self._looking = threading.Lock()

    def run(self) -> None:
        """Watch until the process has ended."""
        thread = threading.Thread(target=self._follow, daemon=True)
        thread.start()
        while self._process.poll() is None:
            with self._looking:
                self._look()
            time.sleep(EVERY_S)
        thread.join()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line)
            found = STEP.match(line)
            if found and found[1] != self._step.partition(" ")[0]:
                with self._looking, contextlib.suppress(OSError):
                    self._look()
                    self._step = f"{found[1]} {found[2].strip()}"
                    Path(f"/proc/{self._driver}/clear_refs").write_text("5")

    def _look(self) -> None:
        self._note("driver", self._driver)
        for child in children(self._driver):
            self._note("worker", child)
            for copy in children(child):
                self._note("worker", copy)

    def _note(self, part: str, pid: int) -> None:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
            told = self.peaks.setdefault(self._step, {})
            told[part] = max(mib, told.get(part, 0.0))


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def build(folder: Path, inputs: Path, changes: list[str]) -> dict[str, dict[str, float]]:
    """Build a corpus of all files in `inputs`; the peaks of its steps."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "stamm", "run", "corpus.demo", "--out", str(folder)),
            *(f"corpus.inputs={inputs}", *CHANGES, *changes),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = Watch(process)
    watch.run()
    if process.returncode:
        raise SystemExit(f"the run failed:\n{''.join(watch.errors[-20:])}")
    return watch.peaks


def main() -> None:
    """Build each size, print the table, and append the row."""
    options = _options()
    pool = paragraphs(options.files)
    sizes = []
    with tempfile.TemporaryDirectory() as name:
        for size in options.sizes:
            inputs = Path(name) / f"in{size}"
            inputs.mkdir()
            many = WORKERS * size if options.grow == "files" else WORKERS
            for number in range(many):
                pages = options.pages if options.grow == "files" else options.pages * size
                write_archive(inputs / f"a{number:04}.warc.gz", pool, pages)
            run = Path(name) / f"run{size}"
            peaks = build(run, inputs, options.changes)
            summary = json.loads((run / "corpus" / "summary.json").read_text())
            sizes.append(
                {
                    "size": size,
                    "files": many,
                    "documents": summary["n_in"],
                    "kept": summary["n_kept"],
                    "text_bytes": summary["bytes_kept"],
                    "peaks_mib": peaks,
                }
            )
            print(f"{size}: {summary['n_in']} documents, {summary['n_kept']} kept", file=sys.stderr)
    _print(sizes)
    if options.out:
        row = {"benchmark": "corpus_memory", "grow": options.grow, "sizes": sizes}
        with options.out.open("a") as out:
            out.write(json.dumps(row | environment()) + "\n")


def _print(sizes: list[dict[str, object]]) -> None:
    peaks: list[dict[str, dict[str, float]]] = [size["peaks_mib"] for size in sizes]  # type: ignore[misc]
    print("| step | " + " | ".join(f"driver {s['size']}x" for s in sizes), end=" | ")
    print(" | ".join(f"worker {s['size']}x" for s in sizes) + " |")
    print("|---" * (1 + 2 * len(sizes)) + "|")
    for step in peaks[-1]:
        cells = [
            f"{told[step][part]:.0f}" if part in told.get(step, {}) else ""
            for part in ("driver", "worker")
            for told in peaks
        ]
        print(f"| {step} | {' | '.join(cells)} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--changes", nargs="*", default=[], help="key=value for stamm run")
    parser.add_argument("--grow", choices=("files", "shards"), default="shards")
    parser.add_argument("--pages", type=int, default=250)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
