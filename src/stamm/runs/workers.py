"""Doing a batch: by one process, by many of this machine, or by the ranks of a cluster.

A shard that fails does not stop the others. When all have been tried the batch ends with one error
that names the failed ones; everything that was done stays done.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from stamm.base.errors import RunError
from stamm.base.files import read_json, remove_leftovers, write_json
from stamm.runs.cluster import RANKS, on_ray, on_slurm
from stamm.runs.execution import Execution, LocalWork, RayWork
from stamm.runs.job import Workspace
from stamm.runs.tasks import MANIFESTS, PLAN, Batch, Task, forget_strangers, save_plan
from stamm.runs.worker import attempt

_SHOWN = 3
RATES = "rates.json"
Result = tuple[str, dict[str, Any]]


def do_batch(batch: Batch, workspace: Workspace, title: str) -> list[dict[str, Any]]:
    """The manifests of all tasks, in their order. What they took goes to the log of the run.

    Raises   RunError naming the shards that failed, after all have been tried.
    """
    progress = workspace.progress
    (batch.folder / MANIFESTS).mkdir(parents=True, exist_ok=True)
    forget_strangers(batch)
    done: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    rates, began = _Rates(), time.perf_counter()
    progress.begin(title, len(batch.tasks), "shards")
    with contextlib.closing(_results(batch, workspace.execution)) as results:
        for name, result in results:
            if "manifest" in result:
                done[name] = result["manifest"]
                failed.pop(name, None)
                rates.add(batch, name, result)
            else:
                failed[name] = str(result["error"])
                progress.say(f"Shard {name} failed: {result['error']}")
                for line in str(result.get("trace", "")).splitlines():
                    progress.say(f"  {line}")
            progress.advance(len(done), f"{sum(m['in'] for m in done.values())} in")
    _forget_plan(batch)
    if workspace.log is not None and rates.shards:
        rates.note(workspace.log / RATES, title, time.perf_counter() - began)
    if failed:
        raise _failure(title, batch, failed)
    progress.end(
        f"{sum(m['kept'] for m in done.values())} of {sum(m['in'] for m in done.values())} kept"
    )
    return [done[task.name] for task in batch.tasks]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _results(batch: Batch, execution: Execution) -> Generator[Result]:
    if isinstance(execution, LocalWork):
        count = min(execution.workers or cores(), len(batch.tasks))
        if count <= 1:
            return ((task.name, attempt(batch, task)) for task in batch.tasks)
        return _pool(batch, count, execution.attempts)
    save_plan(batch)
    if isinstance(execution, RayWork):
        return on_ray(batch, execution)
    return on_slurm(batch, execution)


def _pool(batch: Batch, count: int, attempts: int) -> Generator[Result]:
    """Results in the order in which shards end. A shard whose worker dies goes to the next one."""
    plan = str(save_plan(batch))
    waiting: queue.SimpleQueue[tuple[Task, int]] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    for task in batch.tasks:
        waiting.put((task, 1))
    with _Workers(plan) as workers:
        threads = [
            threading.Thread(target=_serve, args=(workers.start, waiting, results, attempts))
            for _ in range(count)
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        running = count
        while running:
            result = results.get()
            if result is None:
                running -= 1
            else:
                yield result


def _serve(
    start: Callable[[], subprocess.Popen[str]],
    waiting: queue.SimpleQueue[tuple[Task, int]],
    results: queue.SimpleQueue[Result | None],
    attempts: int,
) -> None:
    """Hand one shard after another to a worker, and a new worker to what is left when it dies."""
    worker: subprocess.Popen[str] | None = None
    try:
        while True:
            try:
                task, tried = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is None:
                try:
                    worker = start()
                except (OSError, RuntimeError) as error:
                    results.put((task.name, {"error": f"no worker can be started: {error}"}))
                    continue
            answer = _ask(worker, task.name)
            if answer is None:
                worker.kill()
                ended = worker.wait()
                worker = None
                if tried < attempts:
                    waiting.put((task, tried + 1))
                else:
                    why = f"its worker died {attempts} times, last with status {ended}"
                    results.put((task.name, {"error": why}))
            else:
                results.put((task.name, answer))
    finally:
        results.put(None)


def _ask(worker: subprocess.Popen[str], name: str) -> dict[str, Any] | None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(name + "\n")
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
                [sys.executable, "-m", "stamm.runs.worker", self._plan],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env=environment,
            )
            self._started.append(worker)
        return worker


class _Rates:
    """What the shards done now took; those done before say nothing about this machine."""

    def __init__(self) -> None:
        self.shards = self._records = self._in = self._out = 0
        self._seconds: dict[str, float] = {}

    def add(self, batch: Batch, name: str, result: dict[str, Any]) -> None:
        if not result["seconds"]:
            return
        task = batch.by_name[name]
        self.shards += 1
        self._records += result["manifest"]["in"]
        self._in += sum(Path(path).stat().st_size for path in task.inputs.values())
        self._out += sum(file["bytes"] for file in result["manifest"]["outputs"].values())
        for part, spent in result["seconds"].items():
            self._seconds[part] = self._seconds.get(part, 0.0) + spent

    def note(self, path: Path, title: str, wall_seconds: float) -> None:
        """Keep them for `stamm plan`."""
        known = read_json(path) if path.exists() else {}
        known[title] = {
            "shards": self.shards,
            "records": self._records,
            "input_bytes": self._in,
            "output_bytes": self._out,
            "worker_seconds": {name: round(s, 6) for name, s in sorted(self._seconds.items())},
            "wall_seconds": round(wall_seconds, 6),
        }
        write_json(path, known)


def _forget_plan(batch: Batch) -> None:
    """What only told workers where to look is no output: it names places of this machine."""
    (batch.folder / PLAN).unlink(missing_ok=True)
    remove_leftovers(batch.folder)  # of workers that died
    shutil.rmtree(batch.folder / RANKS, ignore_errors=True)


def _failure(title: str, batch: Batch, failed: dict[str, str]) -> RunError:
    inputs = {task.name: ", ".join(task.inputs.values()) for task in batch.tasks}
    shown: Sequence[str] = [
        f"{name} ({inputs[name]}): {error}" for name, error in sorted(failed.items())[:_SHOWN]
    ]
    more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    return RunError(
        f"{title}: {len(failed)} of {len(batch.tasks)} shards failed: {'; '.join(shown)}{more}",
        fix="Mend or remove these inputs and run the same command: the other shards are done",
    )
