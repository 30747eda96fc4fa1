"""Pool of worker processes on one machine, which exit with the job."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stamm.runs.sharded_job import ShardTask

_FIX = (
    "Provide more memory for such a shard, split its input into smaller files, or remove it, and run "
    "the same command: the other shards are complete"
)
Result = tuple[str, dict[str, Any]]


def run_rank(spec: str, shards: Sequence[ShardTask], workers: int, attempts: int) -> list[Result]:
    """Process the shards of one rank of a cluster with its worker processes; returns their results.

    A rank may be restarted, with shards distributed differently: complete shards are not repeated.
    A shard that kills its process does not affect the others; a full disk ends the rank.
    """
    results = []
    with contextlib.closing(run_on_workers(Path(spec), shards, workers, attempts)) as found:
        for name, result in found:
            results.append((name, result))
            if result.get("full"):
                break
    return results


def run_on_workers(
    spec: Path, shards: Sequence[ShardTask], count: int, attempts: int
) -> Generator[Result]:
    """Results in the order in which shards end.

    A shard whose worker died is retried after all others have ended, one at a time: it may have
    run out of memory beside others.

    spec       what all shards share, from `write_job_spec`
    count      number of processes
    attempts   how often a shard is tried whose worker died
    """
    left, tried = list(shards), 0
    while left:
        tried += 1
        died: dict[str, int] = {}
        at_once = min(count, len(left)) if tried == 1 else 1
        with contextlib.closing(_round(spec, left, at_once)) as answers:
            for name, answer in answers:
                if isinstance(answer, dict):
                    yield name, answer
                elif tried < attempts:
                    died[name] = answer
                else:
                    times = "once" if attempts == 1 else f"{attempts} times"
                    why = f"its worker died {times}, {_death(answer)}"
                    yield name, {"error": why, "fix": _FIX}
        left = [shard for shard in left if shard.name in died]


def _round(
    spec: Path, shards: Sequence[ShardTask], count: int
) -> Generator[tuple[str, dict[str, Any] | int]]:
    """The result of each shard, or the exit status of its worker."""
    waiting: queue.SimpleQueue[ShardTask] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[str, dict[str, Any] | int] | None] = queue.SimpleQueue()
    for shard in shards:
        waiting.put(shard)
    with _Workers(str(spec)) as workers:
        for _ in range(count):
            arguments = (workers.start, waiting, results)
            threading.Thread(target=_feed, args=arguments, daemon=True).start()
        running = count
        while running:
            result = results.get()
            if result is None:
                running -= 1
            else:
                yield result


def _feed(
    start: Callable[[], subprocess.Popen[str]],
    waiting: queue.SimpleQueue[ShardTask],
    results: queue.SimpleQueue[tuple[str, dict[str, Any] | int] | None],
) -> None:
    """Send one shard after another to a worker; a worker that died is replaced.

    On a full disk no worker of the round gets another shard.
    """
    worker: subprocess.Popen[str] | None = None
    try:
        while True:
            try:
                shard = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is None:
                try:
                    worker = start()
                except (OSError, RuntimeError) as error:
                    results.put((shard.name, {"error": f"no worker can be started: {error}"}))
                    continue
            answer = _send(worker, shard)
            if answer is None:
                worker.kill()
                results.put((shard.name, worker.wait()))
                worker = None
            else:
                if answer.get("full"):
                    _drain(waiting)
                results.put((shard.name, answer))
    finally:
        results.put(None)


def _drain(waiting: queue.SimpleQueue[ShardTask]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _death(status: int) -> str:
    if status != -signal.SIGKILL:
        return f"last with status {status}"
    return "last killed by SIGKILL, as when memory runs out"


def _send(worker: subprocess.Popen[str], shard: ShardTask) -> dict[str, Any] | None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(asdict(shard)) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        return json.loads(answer) if answer.endswith("\n") else None
    except (BrokenPipeError, ValueError):
        return None


class _Workers:
    """Worker processes of a job; all are killed on exit."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._started: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for worker in self._started:
                worker.kill()
                worker.wait()

    def start(self) -> subprocess.Popen[str]:
        """Start a worker, which computes with one thread: there is one for each core.

        Raises   RuntimeError when the job has ended, since its folder may belong to another run.
        """
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._lock:
            if self._closed:
                raise RuntimeError("the job has ended")
            worker = subprocess.Popen(
                [sys.executable, "-m", "stamm.runs.worker", self._spec, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env=environment,
            )
            self._started.append(worker)
        return worker
