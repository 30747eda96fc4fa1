"""Slurm as a driver meets it: arrays refused, ranks lost, a driver stopped, files seen late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import install

import stamm
from stamm.base.console import NoProgress
from stamm.base.errors import RunError
from stamm.base.files import write_json
from stamm.runs import cluster_executors, run_sharded
from stamm.runs.executors import LocalExecutor, SlurmExecutor
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import (
    ShardedJob,
    ShardTask,
    manifest_path,
    missing_shards,
    read_manifests,
    write_job_spec,
)

HERE = Path(__file__).parent
PACKAGES = os.pathsep.join([str(HERE), str(Path(stamm.__file__).parents[1])])  # for workers
TEXTS = tuple(f"line {n}\n# comment\n" * (n + 1) for n in range(7))


class Talk(NoProgress):
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "slurm"
    monkeypatch.setenv("PATH", f"{install(state)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("PYTHONPATH", PACKAGES)
    monkeypatch.setattr(cluster_executors, "_LATE_S", 0.5)
    monkeypatch.setattr(cluster_executors, "_LOOK_EVERY_S", 0.1)
    return state


def batch(root: Path, *texts: str, **settings: Any) -> ShardedJob:
    """A batch in a folder whose name has blanks and letters beyond ASCII."""
    inputs = root / "in"
    inputs.mkdir(exist_ok=True, parents=True)
    shards = []
    for number, text in enumerate(texts):
        path = inputs / f"{number}.txt"
        path.write_text(text)
        shards.append(ShardTask(name=f"{number:05d}", inputs={"text": str(path)}))
    return ShardedJob(
        folder=root / "läuft 'hier'",
        work="shard_work:count_lines",
        settings={"log": str(root / "log"), **settings},
        code_packages=("base",),
        shards=tuple(shards),
    )


def do(job: ShardedJob, talk: Talk | None = None, **settings: Any) -> list[dict[str, Any]]:
    execution = SlurmExecutor(**{"tasks": 3, **settings})
    place = Workspace(folder=job.folder, execution=execution, progress=talk or Talk())
    return run_shards(job, place, "count")


def begun(root: Path) -> list[list[str]]:
    return [line.split() for line in lines(root / "log")]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def running(state: Path) -> list[str]:
    """The ranks that do not end by themselves soon; one that has answered takes a moment."""
    for _ in range(100):
        if not (alive := _alive(state)):
            break
        time.sleep(0.1)
    return alive


def _alive(state: Path) -> list[str]:
    alive = []
    for path in state.glob("*.pid"):
        group = path.read_text()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[2] == group and fields[0] != "Z":
                alive.append(path.stem)
    return alive


def test_arrays_are_no_longer_than_the_cluster_takes(slurm: Path, tmp_path: Path) -> None:
    (slurm / "limit").write_text("2")
    job, talk = batch(tmp_path, *TEXTS), Talk()
    done = do(job, talk, tasks=5, max_array_size=2)
    assert [m["in"] for m in done] == [2 * n + 2 for n in range(7)]
    submitted = [line.split()[1] for line in lines(slurm / "submitted")]
    assert submitted == ["2", "2", "1"], talk.said
    assert {name for name, _ in begun(tmp_path)} == {task.name for task in job.shards}
    assert str(os.getpid()) not in {process for _, process in begun(tmp_path)}
    assert not (job.folder / ".slurm").exists()


def test_ranks_inherit_nothing_of_the_job_that_submits_them(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that only waits for its ranks has one core and its own memory; the cluster's settings stay."""
    given = {
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SLURM_MEM_PER_NODE": "16384",
        "SLURM_CONF": "/etc/slurm",
    }
    given |= {"SRUN_CPUS_PER_TASK": "4", "SBATCH_ACCOUNT": "a1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for job, expected in (("", sorted(given)), ("7", ["SBATCH_ACCOUNT", "SLURM_CONF"])):
        if job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        assert len(do(batch(tmp_path / f"job{job}", *TEXTS[:2]))) == 2
        assert lines(slurm / "environment") == expected
        assert {name: os.environ[name] for name in given} == given


def test_results_of_ranks_are_read_from_json_and_nothing_is_unpickled(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a pickle was loaded")

    monkeypatch.setattr("submitit.core.utils.pickle_load", refuse)
    assert [m["in"] for m in do(batch(tmp_path, *TEXTS))] == [2 * n + 2 for n in range(7)]


@pytest.mark.parametrize("damage", ["[]", '{"results": 1}', '{"results": [["00000", 1]]}'])
def test_damaged_results_of_a_rank_are_a_lost_rank(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    read = cluster_executors.read_json
    monkeypatch.setattr(cluster_executors, "read_json", lambda path: read(_written(path, damage)))
    with pytest.raises(RunError, match="lost once, last with results that are not those of shards"):
        do(batch(tmp_path, "a\n"), attempts=1)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_rank_does_as_many_shards_at_once_as_it_has_cores(slurm: Path, tmp_path: Path) -> None:
    assert len(do(batch(tmp_path, "meet\n", "meet\n", "meet\n"), tasks=1, cpus=3)) == 3
    assert len({process for _, process in begun(tmp_path)}) == 3


def test_an_error_of_slurm_is_reported_with_the_setting_it_refers_to(
    slurm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (slurm / "refuse").write_text("invalid partition specified: nowhere")
    with pytest.raises(RunError) as caught:
        do(batch(tmp_path, *TEXTS), partition="nowhere")
    assert caught.value.line() == (
        "Slurm refuses 3 ranks: sbatch: error: invalid partition specified: nowhere "
        "(execution.partition = 'nowhere'). "
        "Change these settings (execution.*) and run the same command."
    )
    assert capfd.readouterr().err == ""
    (slurm / "refuse").unlink()
    (slurm / "limit").write_text("2")
    with pytest.raises(RunError, match=r"Invalid job array .*execution\.max_array_size = 1001\)"):
        do(batch(tmp_path, *TEXTS))


def test_when_a_later_array_is_refused_the_earlier_ones_are_cancelled(
    slurm: Path, tmp_path: Path
) -> None:
    (slurm / "refuse after").write_text(
        "QOSMaxSubmitJobPerUserLimit\nJob violates accounting/QOS policy (job submit limit, "
        "user's size and/or time limits)"
    )
    talk = Talk()
    with pytest.raises(RunError, match=r"QOSMax.* policy .*execution\.qos = '', execution\.tasks"):
        do(batch(tmp_path, *TEXTS, seconds=60), talk, tasks=4, max_array_size=2)
    assert lines(slurm / "cancelled") == [lines(slurm / "submitted")[0].split()[0]]
    assert running(slurm) == []
    assert talk.said == ["2 ranks were cancelled; complete shards are kept."]


def test_a_cluster_without_accounting_is_reported(slurm: Path, tmp_path: Path) -> None:
    (slurm / "no accounts").touch()
    talk = Talk()
    assert len(do(batch(tmp_path, *TEXTS), talk)) == 7
    assert "sacct: Slurm accounting storage is disabled" in talk.said[0]


def driver(root: Path, seconds: float) -> subprocess.Popen[str]:
    """A driver in a process of its own, waiting for ranks that have begun the last shards."""
    program = (
        "import sys; from pathlib import Path; import test_slurm\n"
        "talk = test_slurm.Talk(); root = Path(sys.argv[1])\n"
        "try:\n"
        "    test_slurm.do(test_slurm.batch(root, 'a', 'b', 'c', 'wait'), talk, tasks=2)\n"
        "finally:\n"
        "    print(talk.said, flush=True)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ['PYTHONPATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + seconds
    while "00003" not in {name for name, _ in begun(root)}:
        assert time.monotonic() < until
        time.sleep(0.1)
    return started


def test_an_interrupt_cancels_the_ranks_and_keeps_what_is_done(slurm: Path, tmp_path: Path) -> None:
    with driver(tmp_path, 60) as started:
        started.send_signal(signal.SIGINT)
        said, _ = started.communicate(timeout=60)
    assert "2 ranks were cancelled" in said
    assert lines(slurm / "cancelled") == [lines(slurm / "submitted")[0].split()[0]]
    assert running(slurm) == []
    (tmp_path / "go on").touch()
    done = read_manifests(tmp_path / "läuft 'hier'")
    assert "00001" in done
    assert "00003" not in done
    assert len(do(batch(tmp_path, "a", "b", "c", "wait"))) == 4
    times = Counter(name for name, _ in begun(tmp_path))
    assert times["00001"] == 1
    assert times["00003"] == 2
    assert len(lines(slurm / "cancelled")) == 1


def test_ranks_of_a_driver_that_was_killed_are_cancelled_by_the_next(
    slurm: Path, tmp_path: Path
) -> None:
    with driver(tmp_path, 60) as started:
        started.kill()
    assert _alive(slurm) != []
    (tmp_path / "go on").touch()
    talk = Talk()
    do(batch(tmp_path, "a", "b", "c", "wait"), talk)
    old = lines(slurm / "submitted")[0].split()[0]
    assert talk.said[0] == f"Cancelling job {old} of a killed run."
    assert lines(slurm / "cancelled") == [old]
    assert running(slurm) == []


def test_shards_of_lost_ranks_are_submitted_again_and_then_named(
    slurm: Path, tmp_path: Path
) -> None:
    """One shard takes its rank down each time; those behind it are innocent and get done."""
    texts = ("a\n", "die with the rank\n", "b\n", "c\n", "d\n", "e\n", "f\n")
    job, talk = batch(tmp_path, *texts), Talk()
    with pytest.raises(RunError) as caught:
        do(job, talk, tasks=3, attempts=2)
    log = Path(str(caught.value).partition("its log: ")[2].partition(".err")[0] + ".err")
    assert log.is_file()
    assert log.parent == job.folder / ".slurm"
    assert "1 of 7 shards failed: 00001 (" in str(caught.value)
    assert "its rank was lost 2 times, last without results (state NODE_FAIL)" in str(caught.value)
    assert "execution.memory_gib" in str(caught.value)
    assert any("submitted again (attempt 2 of 2)" in line for line in talk.said)
    assert sorted(read_manifests(job.folder)) == [f"{n:05d}" for n in (0, 2, 3, 4, 5, 6)]
    assert Counter(name for name, _ in begun(tmp_path))["00001"] == 2
    # The driver does none of it by itself.
    assert str(os.getpid()) not in {process for _, process in begun(tmp_path)}


def test_a_rank_out_of_time_is_submitted_again(slurm: Path, tmp_path: Path) -> None:
    """Slurm warns a rank before its time is up; the rank ends, and so do its processes."""
    killed = []

    def warn() -> None:
        while "00001" not in {name for name, _ in begun(tmp_path)}:
            time.sleep(0.1)
        killed.append(int(begun(tmp_path)[-1][1]))
        stat = Path(f"/proc/{killed[0]}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGUSR2)
        while Path(f"/proc/{killed[0]}").exists():
            time.sleep(0.1)
        (tmp_path / "go on").touch()

    slurm_warns = threading.Thread(target=warn, daemon=True)
    slurm_warns.start()
    talk = Talk()
    assert len(do(batch(tmp_path, "a\n", "wait\n"), talk, tasks=1, hours=0.01)) == 2
    slurm_warns.join(60)
    assert "timed-out and not checkpointable" in " ".join(talk.said)
    assert [name for name, _ in begun(tmp_path)] == ["00000", "00001", "00001"]


def test_a_rank_that_fails_reports_its_error(slurm: Path, tmp_path: Path) -> None:
    job = batch(tmp_path, "a\n")
    with pytest.raises(RunError, match=r"lost once, last with .*cannot be dealt.*its log: "):
        cannot = lambda *_: (_ for _ in ()).throw(ValueError("it cannot be dealt"))  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_executors, "run_rank", cannot)
            do(job, attempts=1)


def test_what_ranks_took_is_known_to_the_plan(slurm: Path, tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS)
    place = Workspace(folder=job.folder, execution=SlurmExecutor(tasks=2), log=tmp_path / "clock")
    run_shards(job, place, "count")
    rates = json.loads((tmp_path / "clock" / "rates.json").read_text())["count"]
    assert (rates["shards"], rates["records"]) == (7, 56)


def test_a_folder_that_slurm_would_misread_is_refused(slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "100%a").mkdir()
    with pytest.raises(RunError, match="Slurm would expand the % in"):
        do(batch(tmp_path / "100%a", "a\n"))


def _seen_late(job: ShardedJob, seconds: float) -> Any:
    """A cluster that has done every shard; this machine sees the last manifest `seconds` later."""

    def ranks(*_: object) -> Generator[tuple[str, dict[str, Any]]]:
        run_shards(job, Workspace(folder=job.folder, execution=LocalExecutor(workers=1)), "count")
        done = read_manifests(job.folder)
        late = manifest_path(job.folder, job.shards[-1].name)
        late.unlink()
        show = threading.Timer(seconds, write_json, (late, done[job.shards[-1].name]))
        show.daemon = True
        show.start()
        yield from ((name, {"manifest": done[name], "seconds": {}}) for name in done)

    return ranks


def test_shards_that_a_file_system_shows_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE)
    job = batch(tmp_path, *TEXTS)
    monkeypatch.setattr(run_sharded, "run_on_slurm", _seen_late(job, 1.5))
    assert len(do(job)) == 7
    assert len(read_manifests(job.folder)) == 7
    monkeypatch.setattr(run_sharded, "run_on_slurm", _seen_late(job, 60))
    monkeypatch.setattr(run_sharded, "_SEEN_WITHIN_S", 0.0)
    with pytest.raises(RunError, match="does not hold what was reported for 1 of 7 shards: 00006"):
        do(job)


def test_what_is_not_seen_as_it_was_reported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE)
    job = batch(tmp_path, *TEXTS)
    run_shards(job, Workspace(folder=job.folder, execution=LocalExecutor(workers=1)), "count")
    done = read_manifests(job.folder)
    assert missing_shards(job.folder, done) == []
    (job.folder / "out-00001.txt").unlink()
    (job.folder / "out-00002.txt").write_text("shorter")
    write_json(manifest_path(job.folder, "00003"), {**done["00003"], "key": "another run's"})
    manifest_path(job.folder, "00004").unlink()
    manifest_path(job.folder, "00005").write_text("{")
    assert missing_shards(job.folder, done) == ["00001", "00002", "00003", "00004", "00005"]


def test_a_worker_whose_parent_died_before_it_began_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    worker = subprocess.run(
        [sys.executable, "-m", "stamm.runs.worker", str(tmp_path / "plan"), "1"],
        input="{}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (worker.returncode, worker.stdout) == (1, "")


def test_a_worker_stops_when_another_run_takes_the_folder_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PACKAGES)
    job = batch(tmp_path, "a\n", "b\n")
    with subprocess.Popen(
        [sys.executable, "-m", "stamm.runs.worker", str(write_job_spec(job)), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for task, expected in zip(job.shards, ("manifest", "error"), strict=True):
            worker.stdin.write(json.dumps(asdict(task)) + "\n")
            worker.stdin.flush()
            answer = json.loads(worker.stdout.readline())
            assert expected in answer
            write_job_spec(batch(tmp_path, "a\n", "b\n", other=1))
        worker.stdin.close()
    assert "another run has taken its folder over" in answer["error"]
    assert [name for name, _ in begun(tmp_path)] == ["00000"]
