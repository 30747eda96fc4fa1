"""Comparisons through the command line: planned, tuned, repeated, killed, continued, judged."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stamm, contents, environment
from tests.forked import Parent

pytestmark = pytest.mark.slow  # each test needs whole runs

RECIPE = '''"""Two arms of the smallest comparison."""

from dataclasses import replace

from stamm.recipes.compare import Comparison
from stamm.recipes.comparisons import smoke


def mine() -> Comparison:
    """SwiGLU and xIELU."""
    base = smoke()
    return replace(base, arms=(base.arms[0], base.arms[2]))
'''
CLOCK = ("comparison.html",)


Compare = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def compare(parent: Parent) -> Compare:
    """Runs `stamm compare mine.py` with more words in a folder."""

    def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        (folder / "mine.py").write_text(RECIPE)
        said = ["stamm", "compare", "mine.py", *words]
        return parent.run(said, folder, environment(), timeout=400)

    return call


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, compare: Compare) -> Path:
    """A comparison that nothing disturbed, with what it said beside it."""
    folder = tmp_path_factory.mktemp("compare")
    finished = compare(folder, "--out", "run")
    assert finished.returncode == 0, finished.stderr
    (folder / "said").write_text(finished.stdout)
    return folder / "run"


def test_a_plan_lists_runs_and_cost_and_leaves_nothing(stamm: Stamm, tmp_path: Path) -> None:
    planned = stamm("compare", "smoke", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    # Five short runs and two seeds of three arms
    said = " ".join(planned.stdout.split())
    assert "21 runs, 51 GFLOP of useful work" in said
    assert planned.stdout.count("5 of 6 steps") == 3
    assert re.search(r"^tune\.\* +15 +15$", planned.stdout, re.MULTILINE)
    assert re.search(r"^Training time: about .* for 21 runs \(", planned.stdout, re.MULTILINE)
    assert "2 seeds are few: 8 seeds show" in said
    lines = planned.stdout.splitlines()
    assert len(lines) < 36 and max(map(len, lines)) <= 80
    last = " ".join(lines[-6:])  # the answer is what stays in view
    assert "with power 0.8" in last and "pilot=FOLDER takes" in last
    assert list(tmp_path.iterdir()) == []


def test_it_ends_with_a_verdict_and_a_page(done: Path) -> None:
    said = (done.parent / "said").read_text()
    assert "not shown to differ from swiglu" in said or "than swiglu by" in said
    sha256 = (done / "plan" / "plan.sha256").read_text().split()[0]
    assert f"plan.json, SHA-256 {sha256}." in said
    assert "Report: run/comparison.html" in said
    assert "vs swiglu" in said
    assert (done / "comparison.html").read_text().startswith("<!DOCTYPE html>")


def test_the_runs_that_count_have_the_chosen_rate(done: Path) -> None:
    for arm in ("swiglu", "xielu"):
        chosen = read(done / "tune" / arm / "chosen" / "chosen.json")
        tried = [read(done / f"tune/{arm}/{i}/config.json")["config"] for i in range(5)]
        assert sorted(run["schedule"]["peak"] for run in tried) == [
            trial["rate"] for trial in chosen["trials"]
        ]
        losses = {trial["rate"]: trial["loss_nats"] for trial in chosen["trials"]}
        assert chosen["rate"] == min(losses, key=lambda rate: losses[rate])
        for seed in (1, 2):
            config = read(done / f"final/{arm}/{seed}/config.json")["config"]
            assert config["schedule"]["peak"] == chosen["rate"]
            assert (config["seed"], config["sequences"], config["tuned"]) == (seed, 48, "")


def test_arms_of_one_seed_see_the_same_text(done: Path) -> None:
    """How many tokens the mask keeps tells which text a step saw."""

    def kept(arm: str, seed: int) -> list[int]:
        lines = (done / f"final/{arm}/{seed}/metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["train/kept_tokens"] for line in lines]

    assert kept("swiglu", 1) == kept("xielu", 1)
    assert kept("swiglu", 2) == kept("xielu", 2)
    assert kept("swiglu", 1) != kept("swiglu", 2)


def test_the_same_line_again_does_nothing_and_says_the_same(done: Path, compare: Compare) -> None:
    before = contents(done)
    again = compare(done.parent, "--out", "run")
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stdout
    verdict = (done.parent / "said").read_text().partition("\n\n")[2]
    assert verdict and verdict in again.stdout
    assert contents(done) == before


def test_killed_and_continued_is_the_same_to_the_bit(
    done: Path, tmp_path: Path, parent: Parent, compare: Compare
) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    words = ["stamm", "compare", "mine.py", "--out", "run"]
    for until_there in (
        "steps/refine.swiglu.0.json", "final/xielu/1/metrics.jsonl", "final/swiglu/2/evaluate",
    ):  # fmt: skip
        working = parent.start(words, tmp_path, environment())
        until = time.monotonic() + 300
        while not (tmp_path / "run" / until_there).exists():
            assert working.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        working.kill()
        working.wait()
    again = compare(tmp_path, "--out", "run")
    assert again.returncode == 0, again.stderr
    left, right = contents(done), contents(tmp_path / "run")
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name] and name not in CLOCK] == []


def test_side_by_side_asked_to_end_and_continued_is_the_same_to_the_bit(
    done: Path, tmp_path: Path, parent: Parent, compare: Compare
) -> None:
    """Two runs at once, ended by SIGTERM while both train; then three at once."""
    (tmp_path / "mine.py").write_text(RECIPE)
    words = ["stamm", "compare", "mine.py", "--out", "run", "--jobs", "2"]
    working = parent.start(words, tmp_path, environment())
    until = time.monotonic() + 300
    while not (tmp_path / "run/final/xielu/1/metrics.jsonl").exists():
        assert working.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    working.send_signal(signal.SIGTERM)
    assert working.wait() == 143
    first = read(tmp_path / "run/steps/tune.swiglu.1.json")
    second = read(tmp_path / "run/steps/tune.swiglu.0.json")
    assert abs(first["ended"] - second["ended"]) < first["seconds"]  # they ran at the same time
    again = compare(tmp_path, "--out", "run", "--jobs", "3")
    assert again.returncode == 0, again.stderr
    left, right = contents(done), contents(tmp_path / "run")
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name] and name not in CLOCK] == []


def test_a_run_that_fails_beside_others_ends_them_with_its_own_line(
    tmp_path: Path, compare: Compare, done: Path
) -> None:
    shutil.copytree(done, tmp_path / "run")
    for seed in (1, 2):
        (tmp_path / f"run/steps/pretrain.xielu.{seed}.json").unlink()
    shutil.rmtree(tmp_path / "run/final/xielu/2")
    (tmp_path / "run/final/xielu/2").write_text("a file in the place of the folder")
    failed = compare(tmp_path, "--out", "run", "--jobs", "2")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("stamm: ")
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("word", ["0", "-1", "two"])
def test_a_number_of_jobs_that_is_none_is_refused(stamm: Stamm, word: str) -> None:
    refused = stamm("compare", "smoke", f"--jobs={word}")
    assert refused.returncode == 2
    assert "--jobs" in refused.stderr


def test_a_lost_choice_is_made_again_without_training(
    done: Path, tmp_path: Path, compare: Compare
) -> None:
    shutil.copytree(done, tmp_path / "run")
    path = tmp_path / "run/tune/xielu/chosen/chosen.json"
    kept = path.read_bytes()
    path.unlink()
    again = compare(tmp_path, "--out", "run")
    assert again.returncode == 0, again.stderr
    assert path.read_bytes() == kept
    assert "train" not in again.stderr


def test_a_report_says_what_the_run_said_and_writes_the_same_page(
    done: Path, parent: Parent
) -> None:
    page = (done / "comparison.html").read_bytes()
    again = parent.run(["stamm", "report", "run"], done.parent, environment())
    assert again.returncode == 0, again.stderr
    verdict = (done.parent / "said").read_text().partition("\n\n")[2].partition("\n\nReport:")[0]
    assert "xielu" in verdict and again.stdout == f"{verdict}\n\nrun/comparison.html\n"
    assert (done / "comparison.html").read_bytes() == page
    assert not (done / "report.html").exists()


def test_folders_of_comparisons_are_tabled_by_size(done: Path, stamm: Stamm) -> None:
    found = stamm("compare", str(done), str(done))
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("comparison  arm")
    assert [line.split()[:2] for line in lines[1:]] == [["run", "xielu"]] * 2


def test_arms_that_diverge_are_an_answer(tmp_path: Path, compare: Compare) -> None:
    finished = compare(
        tmp_path, "--out", "run", "tuning.rates=1e6,1e9", "tuning.length=1", "tuning.refinements=0"
    )
    assert finished.returncode == 0, finished.stderr
    assert "xielu diverged with seeds 1, 2 of 2, and so did swiglu" in finished.stdout
    page = (tmp_path / "run" / "comparison.html").read_text()
    assert "Events during training" in page


def test_equal_time_measures_first_and_follows_the_record(tmp_path: Path, compare: Compare) -> None:
    finished = compare(
        tmp_path, "--out", "run", "matched=EqualTime", "matched.rounds=1", "matched.steps=2",
        "matched.warmup_steps=1", "tuning.refinements=0",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "Lengths were set so that training takes the same time" in finished.stdout
    pace = read(tmp_path / "run/step_timing/step_timing.json")
    base, other = (pace["arms"][arm]["seconds_per_step"] for arm in ("swiglu", "xielu"))
    assert pace["runs"]["swiglu.final"] == {"sequences": 48}
    steps = max(int(12 * base / other + 1e-9), 1)
    assert pace["runs"]["xielu.final"] == {"sequences": 4 * steps}
    for arm, kind, folder in (
        ("xielu", "final", "final/xielu/1"),
        ("xielu", "short", "tune/xielu/0"),
        ("swiglu", "short", "tune/swiglu/2"),
    ):
        config = read(tmp_path / "run" / folder / "config.json")["config"]
        assert config["sequences"] == pace["runs"][f"{arm}.{kind}"]["sequences"]


def test_a_look_that_decides_ends_the_evidence(stamm: Stamm, tmp_path: Path) -> None:
    """Every interval lies within a large difference, so the first look decides; nothing is pending."""
    words = ("compare", "evidence_smoke", "--out", "run", "difference=1e9")
    finished = stamm(*words)
    assert finished.returncode == 0, finished.stderr
    assert "This is look 1 of 2, after 2 of at most 3 seeds." in finished.stdout
    assert "every arm is decided" in finished.stdout
    assert not (tmp_path / "run" / "final" / "swiglu" / "3").exists()
    weights = [
        tmp_path / f"run/final/xielu/1/{part}model/decoder.json" for part in ("", "averaged/")
    ]
    final, averaged = (read(path)["weights_sha256"] for path in weights)
    assert final != averaged
    assert "nothing to do" in stamm(*words).stdout


def test_what_is_no_comparison_is_told(stamm: Stamm) -> None:
    refused = stamm("compare", "demo")
    assert refused.returncode == 2
    assert "demo is not a comparison" in refused.stderr
