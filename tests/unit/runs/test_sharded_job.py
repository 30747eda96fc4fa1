"""Shards: each done once, proven by its manifest, whoever does it and whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stamm
from stamm.base.errors import DataError, RunError
from stamm.base.files import atomic
from stamm.runs.executors import Execution, LocalExecutor, SlurmExecutor
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import (
    ShardedJob,
    ShardTask,
    code_hash,
    load_job_spec,
    read_manifests,
    write_job_spec,
)

ROOT = Path(__file__).parents[3]
WORK = "shard_work:count_lines"
TWO = LocalExecutor(workers=2)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [str(Path(__file__).parent), str(Path(stamm.__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(packages))


def batch(root: Path, *texts: str, **settings: Any) -> ShardedJob:
    (root / "in").mkdir(exist_ok=True)
    shards = []
    for number, text in enumerate(texts):
        path = root / "in" / f"{number}.txt"
        path.write_text(text)
        shards.append(ShardTask(name=f"{number:05d}", inputs={"text": str(path)}))
    settings.setdefault("log", str(root / "log"))
    return ShardedJob(
        folder=root / "out",
        work=WORK,
        settings=settings,
        code_packages=("base",),
        shards=tuple(shards),
    )


def do(job: ShardedJob, execution: Execution = TWO) -> list[dict[str, Any]]:
    return run_shards(job, Workspace(folder=job.folder, execution=execution), "count")


def begun(root: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in (root / "log").read_text().splitlines())


def left(job: ShardedJob) -> dict[str, bytes]:
    return {
        str(p.relative_to(job.folder)): p.read_bytes()
        for p in sorted(job.folder.rglob("*"))
        if p.is_file()
    }


TEXTS = tuple(f"line {n}\n# comment\n" * (n + 1) for n in range(7))


def test_any_number_of_workers_leaves_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for name, execution in (
        ("alone", LocalExecutor(workers=1)),
        ("two", TWO),
        ("five", LocalExecutor(workers=5)),
        ("ranks", SlurmExecutor(tasks=3, simulated=True)),
    ):
        (tmp_path / name).mkdir()
        job = batch(tmp_path / name, *TEXTS, log="")
        manifests = do(job, execution)
        assert [m["in"] for m in manifests] == [2 * (n + 1) for n in range(7)]
        assert all(m["in"] == m["kept"] + sum(m["dropped"].values()) for m in manifests)
        assert list(read_manifests(job.folder).values()) == manifests
        found.append(left(job))
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 14


def test_done_shards_are_not_done_again_and_changed_ones_are(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS)
    first = do(job)
    whole = left(job)
    assert do(job) == first
    assert begun(tmp_path) == Counter({f"{n:05d}": 1 for n in range(7)})
    (job.folder / "out-00003.txt").write_text("altered, of the same length or not")
    (job.folder / "out-00004.txt").unlink()
    (job.folder / "manifests" / "00005.json").write_text('{"half": ')
    assert do(job) == first
    assert left(job) == whole
    assert begun(tmp_path) == Counter({f"{n:05d}": 2 if 3 <= n <= 5 else 1 for n in range(7)})
    (tmp_path / "in" / "6.txt").write_text("now another\n")
    do(job)
    assert begun(tmp_path)["00006"] == 2
    assert begun(tmp_path).total() == 11


def test_other_settings_are_another_identity(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS)
    do(job)
    do(replace(job, settings={**job.settings, "more": 1}))
    assert begun(tmp_path) == Counter({f"{n:05d}": 2 for n in range(7)})


def test_code_is_part_of_the_identity() -> None:
    assert code_hash(("base",)) != code_hash(("runs",))
    assert code_hash(("base",)) == code_hash(("base",))


def test_common_files_are_part_of_the_identity(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("one")
    job = replace(batch(tmp_path, *TEXTS[:2]), common={"rules": str(rules)})
    do(job)
    do(job)
    rules.write_text("two!")
    do(job)
    assert begun(tmp_path) == Counter({"00000": 2, "00001": 2})
    with pytest.raises(RunError, match="gone does not exist"):
        do(replace(job, common={"rules": str(tmp_path / "gone")}))


def test_fewer_shards_leave_nothing_of_the_others(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS)
    do(job)
    fewer = replace(job, shards=job.shards[:2])
    (job.folder / "manifests" / "00006.json").unlink()
    (job.folder / "out-00099.txt").write_text("of a run that was killed before its manifest")
    (job.folder / "summary.json").write_text("no shard's")
    do(fewer)
    assert (job.folder / "summary.json").exists()
    assert {p.name for p in job.folder.glob("out-*")} == {"out-00000.txt", "out-00001.txt"}
    assert list(read_manifests(job.folder)) == ["00000", "00001"]


@pytest.mark.parametrize("execution", [LocalExecutor(workers=1), TWO])
def test_a_bad_shard_does_not_stop_the_others(tmp_path: Path, execution: LocalExecutor) -> None:
    job = batch(tmp_path, "a\n", "bad\n", "b\n", "defect\n", "c\n")
    with pytest.raises(
        RunError,
        match=r"2 of 5 shards failed: 00001 \(.*1\.txt\): .* is bad\. Mend it\.; "
        r"00003 .*ZeroDivisionError: a defect",
    ):
        do(job, execution)
    assert list(read_manifests(job.folder)) == ["00000", "00002", "00004"]
    (tmp_path / "in" / "1.txt").write_text("good\n")
    (tmp_path / "in" / "3.txt").write_text("good\n")
    assert sum(m["kept"] for m in do(job, execution)) == 5
    assert begun(tmp_path)["00000"] == 1


def test_a_shard_that_kills_its_worker_is_tried_again_and_then_named(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS, "die once\n", flag=str(tmp_path / "flag"))
    assert len(do(job)) == 8
    assert begun(tmp_path)["00007"] == 2
    other = batch(tmp_path, *TEXTS, "die\n")
    with pytest.raises(RunError, match=r"00007 .*worker died 3 times, last killed .* more memory"):
        do(other)
    assert len(read_manifests(other.folder)) == 7


def test_a_shard_that_needs_the_machine_for_itself_gets_it(tmp_path: Path) -> None:
    job = batch(tmp_path, "greedy\n", "greedy\n", "a\n", busy=str(tmp_path / "busy"))
    assert len(do(job)) == 3
    assert begun(tmp_path) == Counter({"00000": 2, "00001": 2, "00002": 1})


@pytest.mark.parametrize("execution", [LocalExecutor(workers=1), TWO])
def test_a_full_disk_ends_the_job_at_once(tmp_path: Path, execution: LocalExecutor) -> None:
    job = batch(tmp_path, "full\n", "wait\n", *TEXTS, *TEXTS)
    with pytest.raises(
        RunError,
        match=r"1 of 16 shards failed, 15 were not started: 00000 .*no space left .*Free disk",
    ):
        do(job, execution)
    assert "00000" in begun(tmp_path) and len(begun(tmp_path)) <= 2  # one for each process
    (tmp_path / "in" / "0.txt").write_text("room\n")
    (tmp_path / "go on").touch()
    assert len(do(job, execution)) == 16
    assert not list(job.folder.rglob(".*"))


def test_two_machines_with_one_process_number_write_beside_each_other(tmp_path: Path) -> None:
    """As ranks in containers have; both may do one shard when a driver was killed."""
    path = tmp_path / "out-00000.txt"
    with atomic(path) as one, atomic(path) as other:
        one.write_text("whole")
        other.write_text("who")
        one.write_text("whole")
        other.write_text("whole")
        assert one != other
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_without_a_proof_is_made_again(tmp_path: Path) -> None:
    job = batch(tmp_path, "a\n", "b\n")
    do(job)
    (tmp_path / "in" / "0.txt").write_text("die before the proof\nnew\n")
    with pytest.raises(RunError, match=r"00000 .*worker died once"):
        do(job, LocalExecutor(workers=2, attempts=1))
    assert "new" in (job.folder / "out-00000.txt").read_text()
    assert list(read_manifests(job.folder)) == ["00001"]
    assert [m["in"] for m in do(job)] == [2, 1]
    assert begun(tmp_path) == Counter({"00000": 3, "00001": 1})


@pytest.mark.parametrize("stray", [".pack.py.swp", ".nfs000000001", "__pycache__/pack.pyc"])
def test_what_is_left_beside_code_is_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stray: str
) -> None:
    monkeypatch.setattr("stamm.runs.sharded_job.PACKAGE", tmp_path / ".venv" / "stamm")
    room = tmp_path / ".venv" / "stamm" / "corpus"
    (room / "__pycache__").mkdir(parents=True)
    (room / "pack.py").write_text("x = 1\n")
    whole = code_hash.__wrapped__(("corpus",))
    (room / stray).write_text("y = 2\n")
    assert code_hash.__wrapped__(("corpus",)) == whole
    (room / "pack.py").write_text("x = 3\n")
    assert code_hash.__wrapped__(("corpus",)) != whole


def test_a_changed_page_does_no_shard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stamm.runs.sharded_job.PACKAGE", tmp_path)
    for name in (
        "pack.py",
        "section.py",
        "page/figures.py",
        "templates/corpus.html",
        "pii/page.py",
    ):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text("x = 1\n")
    whole = code_hash.__wrapped__(("corpus",))
    for name in ("section.py", "page/figures.py", "templates/corpus.html"):
        (tmp_path / "corpus" / name).write_text("x = 2\n")
    assert code_hash.__wrapped__(("corpus",)) == whole
    (tmp_path / "corpus" / "pii" / "page.py").write_text("x = 2\n")
    assert code_hash.__wrapped__(("corpus",)) != whole


def test_ranks_that_die_are_submitted_again(tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    job = batch(tmp_path, *TEXTS, "die once\n", *TEXTS, "die once\n", flag=flag)
    assert len(do(job, SlurmExecutor(tasks=3, simulated=True))) == 16
    assert begun(tmp_path)["00007"] == begun(tmp_path)["00015"] == 2
    assert not (job.folder / ".slurm").exists()


def test_documents_that_are_unaccounted_for_stop_the_shard(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS[:2], lost=1)
    with pytest.raises(RunError, match="does not add up: 3 read, 1 kept, 1 dropped, 1 unacc"):
        do(job)
    assert read_manifests(job.folder) == {}


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    job = batch(tmp_path, "a\n")
    path = write_job_spec(job)
    assert load_job_spec(path) == replace(job, shards=())
    plan = json.loads(path.read_text())
    path.write_text(json.dumps({**plan, "version": "0.0.1"}))
    with pytest.raises(RunError, match=r"was written by stamm 0\.0\.1"):
        load_job_spec(path)
    path.write_text(json.dumps({**plan, "code": "0"}))
    with pytest.raises(RunError, match=r"was written by other code of stamm"):
        load_job_spec(path)
    write_job_spec(job)
    with pytest.raises(RunError, match=r"is gone: the job has ended, or another run has taken"):
        load_job_spec(path)


def test_a_damaged_manifest_of_a_shard_is_reported(tmp_path: Path) -> None:
    job = batch(tmp_path, "a\n")
    do(job)
    (job.folder / "manifests" / "00000.json").write_text("{}")
    with pytest.raises(DataError, match="is not the manifest of a shard"):
        read_manifests(job.folder)


@pytest.mark.parametrize("moment", [0.9, 1.3, 1.7, 2.1])
def test_workers_die_with_their_parent_and_nothing_is_lost(tmp_path: Path, moment: float) -> None:
    job = batch(tmp_path, *TEXTS, seconds=0.2)
    program = (
        "import sys; from pathlib import Path; import test_tasks\n"
        "root = Path(sys.argv[1]); texts = test_tasks.TEXTS\n"
        "test_tasks.do(test_tasks.batch(root, *texts, seconds=0.2))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    time.sleep(moment)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for pid in {int(line.split()[1]) for line in _lines(tmp_path / "log")}:
        _wait_for_end(pid)
    again = batch(tmp_path, *TEXTS, seconds=0.2)
    do(again)
    assert {p.read_text() for p in job.folder.glob("out-*")} == {
        text.replace("# comment\n", "") for text in TEXTS
    }
    assert begun(tmp_path).total() <= 7 + 2


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _wait_for_end(pid: int) -> None:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"worker {pid} outlived its parent")


def test_what_shards_took_goes_to_the_log_and_nowhere_else(tmp_path: Path) -> None:
    job = batch(tmp_path, *TEXTS)
    place = Workspace(folder=job.folder, execution=TWO, log=tmp_path / "clock")
    run_shards(job, place, "count")
    rates = json.loads((tmp_path / "clock" / "rates.json").read_text())["count"]
    assert rates["records"] == 56
    assert rates["worker_seconds"]["all"] > 0
    assert all(b"seconds" not in data for data in left(job).values())
    run_shards(job, place, "count")  # nothing was done, so nothing is known that is newer
    assert json.loads((tmp_path / "clock" / "rates.json").read_text())["count"] == rates
