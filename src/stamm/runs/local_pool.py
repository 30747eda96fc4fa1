"""Shards done by processes of one machine, which end with the batch that they work for."""

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

from stamm.runs.sharded_job import Task

_MORE_MEMORY = (
    "Give such a shard more memory, cut its input into smaller files, or remove it, and run the "
    "same command: the other shards are done"
)
Result = tuple[str, dict[str, Any]]


def do_rank(plan: str, tasks: Sequence[Task], workers: int, attempts: int) -> list[Result]:
    """What became of the tasks that one machine of a cluster was given, done by its processes.

    Any number of ranks may be started again, with tasks dealt in another way: what is done is not
    done twice. A shard that kills its process takes nothing of the rank's others with it; a full
    disk ends the rank.
    """
    results = []
    with contextlib.closing(pool(Path(plan), tasks, workers, attempts)) as found:
        for name, result in found:
            results.append((name, result))
            if result.get("full"):
                break
    return results


def pool(plan: Path, tasks: Sequence[Task], count: int, attempts: int) -> Generator[Result]:
    """Results in the order in which shards end.

    A shard whose worker died is tried again when all others have ended, and then alone: memory
    that did not do for many at once may do for one.

    plan       what all tasks share, from `save_plan`
    count      how many processes
    attempts   how often a shard whose worker died is tried
    """
    left, tried = list(tasks), 0
    while left:
        tried += 1
        died: dict[str, int] = {}
        at_once = min(count, len(left)) if tried == 1 else 1
        with contextlib.closing(_round(plan, left, at_once)) as answers:
            for name, answer in answers:
                if isinstance(answer, dict):
                    yield name, answer
                elif tried < attempts:
                    died[name] = answer
                else:
                    times = "once" if attempts == 1 else f"{attempts} times"
                    why = f"its worker died {times}, {_how(answer)}"
                    yield name, {"error": why, "fix": _MORE_MEMORY}
        left = [task for task in left if task.name in died]


def _round(
    plan: Path, tasks: Sequence[Task], count: int
) -> Generator[tuple[str, dict[str, Any] | int]]:
    """What became of each task, or the status with which its worker died."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[str, dict[str, Any] | int] | None] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    with _Workers(str(plan)) as workers:
        for _ in range(count):
            arguments = (workers.start, waiting, results)
            threading.Thread(target=_serve, args=arguments, daemon=True).start()
        running = count
        while running:
            result = results.get()
            if result is None:
                running -= 1
            else:
                yield result


def _serve(
    start: Callable[[], subprocess.Popen[str]],
    waiting: queue.SimpleQueue[Task],
    results: queue.SimpleQueue[tuple[str, dict[str, Any] | int] | None],
) -> None:
    """Hand one shard after another to a worker, and a new worker to what is left when it dies.

    Where the disk is full no worker of the round is given another shard.
    """
    worker: subprocess.Popen[str] | None = None
    try:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is None:
                try:
                    worker = start()
                except (OSError, RuntimeError) as error:
                    results.put((task.name, {"error": f"no worker can be started: {error}"}))
                    continue
            answer = _ask(worker, task)
            if answer is None:
                worker.kill()
                results.put((task.name, worker.wait()))
                worker = None
            else:
                if answer.get("full"):
                    _empty(waiting)
                results.put((task.name, answer))
    finally:
        results.put(None)


def _empty(waiting: queue.SimpleQueue[Task]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _how(status: int) -> str:
    if status != -signal.SIGKILL:
        return f"last with status {status}"
    return "last killed from outside, as happens where memory runs out"


def _ask(worker: subprocess.Popen[str], task: Task) -> dict[str, Any] | None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(asdict(task)) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        return json.loads(answer) if answer.endswith("\n") else None
    except (BrokenPipeError, ValueError):
        return None


class _Workers:
    """The worker processes of a batch; none is left behind."""

    def __init__(self, plan: str) -> None:
        self._plan = plan
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
        """A new worker. Each computes with one thread: there is one for every core.

        Raises   RuntimeError when the batch has ended: nobody must write into its folder any more.
        """
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._lock:
            if self._closed:
                raise RuntimeError("the batch has ended")
            worker = subprocess.Popen(
                [sys.executable, "-m", "stamm.runs.worker", self._plan, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env=environment,
            )
            self._started.append(worker)
        return worker
