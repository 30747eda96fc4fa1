"""Corpus recipes through the real command line: killed, damaged, planned, replayed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Stamm, contents, environment
from tests.forked import Parent

pytestmark = pytest.mark.slow  # each test needs whole runs

KILLS = 10
RECIPE = (
    "corpus.demo",
    "corpus.inputs=package:rights.jsonl.zst,package:pages.warc.gz,package:guides.jsonl.zst",
    "corpus.probes.passages_per_bucket=1",
    "tokenizer.vocab_size=400",
    "pack.shard_tokens=60000",
)


def _words(workers: int) -> list[str]:
    return ["stamm", "run", *RECIPE, f"execution.workers={workers}", "--out", "run"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, parent: Parent) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    done = parent.run(_words(1), folder, environment())
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_corpus_killed_ten_times_loses_and_doubles_nothing(
    finished: Path, tmp_path: Path, parent: Parent
) -> None:
    """Two workers killed at random moments, against one worker that never was."""
    draw = random.Random(20261122)
    kills = 0
    while kills < KILLS:
        process = parent.start(_words(2), tmp_path, environment())
        try:
            process.wait(timeout=draw.uniform(0.1, 1.4))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    last = parent.run(_words(2), tmp_path, environment())
    assert last.returncode == 0, last.stderr
    left, right = contents(finished), contents(tmp_path / "run")
    assert left.pop("config.json") != right.pop("config.json")  # it tells the number of workers
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name]] == []
    assert kills >= 5


def test_a_damaged_shard_is_made_again_and_no_other(finished: Path, stamm: Stamm) -> None:
    whole = contents(finished)
    path = finished / "filtered" / "documents-00001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    times = {p.name: p.stat().st_mtime_ns for p in path.parent.glob("documents-*")}
    done = stamm("run", *RECIPE, "execution.workers=1", "--out", str(finished))
    assert done.returncode == 0, done.stderr
    assert contents(finished) == whole
    again = {p.name: p.stat().st_mtime_ns for p in path.parent.glob("documents-*")}
    assert [name for name in times if times[name] != again[name]] == [path.name]


def test_another_configuration_begins_anew_where_it_is_asked_to(
    finished: Path, tmp_path: Path, stamm: Stamm
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    other = ("run", *RECIPE[:-2], "tokenizer.vocab_size=380", RECIPE[-1], "--out", "run")
    refused = stamm(*other)
    assert refused.returncode == 2
    assert "or set that run aside with --restart" in refused.stderr
    for wrong in (("--dry-run",), ("tokenizer.vocab_size=3",)):
        assert stamm(*other, "--restart", *wrong).returncode == 2
        assert contents(tmp_path / "run") == contents(finished)
    done = stamm(*other, "--restart")
    assert done.returncode == 0, done.stderr
    assert "The earlier run in run was moved to run.before-1." in done.stdout
    assert contents(tmp_path / "run.before-1") == contents(finished)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["tokenizer"]["vocab_size"] == 380
    (tmp_path / "run" / "config.json").unlink()
    refused = stamm(*other, "--restart")
    assert "run is not a run folder. Move it away yourself." in refused.stderr


def test_a_finished_corpus_is_planned_from_its_own_rates(finished: Path, stamm: Stamm) -> None:
    plan = json.loads(stamm("plan", *RECIPE, "--out", str(finished), "--json").stdout)
    shares = [part["share"] for part in plan["parts"]]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    named = {(part["step"], part["name"]) for part in plan["parts"]}
    assert {("filter", "consent"), ("filter", "dedup"), ("tokenize", "all")} <= named
    first, second = plan["scales"]
    factor = second["input_bytes"] / first["input_bytes"]
    assert second["core_hours"] == pytest.approx(factor * first["core_hours"])
    said = stamm("plan", *RECIPE, "--out", str(finished)).stdout
    assert "bottleneck" in said
    assert "100 dumps of Common Crawl" in said


def test_a_plan_without_a_run_says_what_to_do(tmp_path: Path, stamm: Stamm) -> None:
    refused = stamm("plan", "corpus.demo", "--out", str(tmp_path))
    assert refused.returncode == 1
    assert "has no measured rates" in refused.stderr
    assert "Run the recipe once" in refused.stderr


def test_a_replay_takes_out_what_a_newer_word_refuses(
    finished: Path, tmp_path: Path, stamm: Stamm
) -> None:
    (tmp_path / "refused.txt").write_text("opensource.guide\n")
    (tmp_path / "asked.txt").write_text("https://nobody.example/jane-doe\n")
    words = (
        "corpus.replay",
        f"run={finished}",
        f"replay.domains={tmp_path / 'refused.txt'}",
        f"replay.deletions={tmp_path / 'asked.txt'}",
    )
    done = stamm("run", *words, "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "again" / "corpus" / "summary.json").read_text())
    assert summary["withdrawn_by_reason"].keys() == {"domain_list"}
    assert "1 of 1 deletion requests match no input record: asked.txt line 1" in (done.stderr)
    assert "1 match nothing that came in: asked.txt line 1." in done.stdout
    assert "jane-doe" not in done.stdout + done.stderr
    said = stamm("show", "ledger", str(tmp_path / "again"), "host=opensource.guide", "limit=1")
    assert "domain_list" in said.stdout
    assert "refused.txt, line 1" in said.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("corpus.replay",), "run is empty"),
        (("corpus.replay", "run=/nowhere"), "holds no finished corpus"),
        (("corpus.robots",), "must be set before any host is contacted"),
        (("corpus.robots", "domains=x", "agent=a b", "contact=me"), "must read as name/version"),
        (("corpus.demo", "corpus.inputs=nothing/*.warc"), "no file matches nothing/*.warc"),
        (("corpus.demo", "execution.workers=-1"), "workers = -1 must lie in"),
    ],
)
def test_misuse_is_told_before_anything_is_done(
    tmp_path: Path, stamm: Stamm, words: tuple[str, ...], message: str
) -> None:
    refused = stamm("run", *words, "--out", str(tmp_path / "run"))
    assert refused.returncode in (1, 2)
    assert message in refused.stderr
    assert not (tmp_path / "run" / "config.json").exists()
