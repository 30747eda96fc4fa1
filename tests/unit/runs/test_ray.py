"""Ray as a driver meets it, on a stand-in that does its tasks when they are waited for."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stamm.base.errors import RunError
from stamm.runs import cluster_executors
from stamm.runs.executors import RayExecutor
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardTask, read_manifests


class LostError(Exception):
    """What Ray raises for a task whose worker died."""


class StandIn(ModuleType):
    """As much of Ray as is asked for. Tasks whose name stands in `deaths` die so many times."""

    def __init__(self, deaths: dict[str, int]) -> None:
        super().__init__("ray")
        self.deaths, self.put_bytes, self.sent_bytes = deaths, 0, 0
        self.most, self.ended = 0, False
        self.options: dict[str, Any] = {}
        self.exceptions = SimpleNamespace(RayError=LostError)

    def init(self, address: str | None) -> None:
        if address == "ray://nowhere:1":
            raise ConnectionError("nobody there")

    def shutdown(self) -> None:
        self.ended = True

    def put(self, value: Any) -> bytes:
        self.put_bytes += len(pickle.dumps(value))
        return pickle.dumps(value)

    def remote(self, **options: Any) -> Any:
        self.options = options

        def decorate(function: Any) -> Any:
            def call(shared: bytes, task: ShardTask) -> tuple[Any, bytes, ShardTask]:
                self.sent_bytes += len(pickle.dumps(task))
                return function, shared, task

            return SimpleNamespace(remote=lambda *given: _Reference(call(*given)))

        return decorate

    def wait(self, references: list[Any]) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(references))
        return references[-1:], references[:-1]

    def get(self, reference: Any) -> Any:
        function, shared, task = reference.call
        if self.deaths.get(task.name, 0):
            self.deaths[task.name] -= 1
            raise LostError("the worker died\nof hunger")
        with contextlib.chdir("/"):  # not where the driver is
            return function(pickle.loads(shared), task)


class _Reference:
    def __init__(self, call: Any) -> None:
        self.call = call


def _do(
    root: Path, monkeypatch: pytest.MonkeyPatch, count: int, **deaths: int
) -> tuple[StandIn, ShardedJob]:
    ray = StandIn({name.lstrip("s"): times for name, times in deaths.items()})
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (root / "in").mkdir(exist_ok=True)
    shards = []
    for number in range(count):
        path = root / "in" / f"{number}.txt"
        path.write_text(f"line {number}\n# comment\n")
        shards.append(ShardTask(name=f"{number:05d}", inputs={"text": str(path)}))
    job = ShardedJob(
        folder=root / "out",
        work="shard_work:count_lines",
        settings={"log": str(root / "log"), "long": "x" * 10_000},
        code_packages=("base",),
        shards=tuple(shards),
    )
    return ray, job


def _run(job: ShardedJob, **settings: Any) -> list[dict[str, Any]]:
    return run_shards(job, Workspace(folder=job.folder, execution=RayExecutor(**settings)), "count")


def test_what_tasks_share_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_executors, "_AT_ONCE", 8)
    ray, job = _do(tmp_path, monkeypatch, 30)
    assert len(_run(job)) == 30
    assert 10_000 < ray.put_bytes < 12_000
    assert ray.sent_bytes < 30 * 400
    assert ray.most == 8
    assert ray.ended


def test_a_shard_whose_worker_dies_is_tried_again_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our count alone: Ray's own is endless where memory runs out."""
    ray, job = _do(tmp_path, monkeypatch, 5, s00001=2, s00003=3)
    with pytest.raises(
        RunError, match=r"1 of 5 shards failed: 00003 .*tried 3 times, last: the worker died"
    ):
        _run(job, attempts=3)
    assert ray.options["max_retries"] == 0
    assert sorted(read_manifests(job.folder)) == ["00000", "00001", "00002", "00004"]
    assert ray.ended
    times = Counter(line.split()[0] for line in (tmp_path / "log").read_text().splitlines())
    assert times == Counter({"00000": 1, "00001": 1, "00002": 1, "00004": 1})


def test_paths_mean_the_same_to_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _, job = _do(Path(), monkeypatch, 2)
    assert len(_run(job)) == 2
    assert len(read_manifests(tmp_path / "here" / "out")) == 2


def test_a_worker_with_other_code_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = _do(tmp_path, monkeypatch, 1)
    answer = cluster_executors._try_on_ray(("another hash", "/", job), job.shards[0])
    assert "other code of stamm" in answer["error"]
    assert not job.folder.exists()


def test_a_cluster_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = _do(tmp_path, monkeypatch, 1)
    with pytest.raises(RunError, match="no Ray cluster answers at ray://nowhere:1: nobody there"):
        _run(job, address="ray://nowhere:1")
