"""Many ranks over one folder, killed at random, restarted in other numbers, one shard poisoned."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.documents import InputRecord
from stamm.corpus.filter_job import filter_batch, filter_inputs
from stamm.corpus.inputs import locate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from stamm.runs.sharded_job import MANIFESTS, write_job_spec
from tests.conftest import environment

SHARDS = 24
RANK = """
import json, sys
from stamm.runs.worker import run_rank
from stamm.runs.sharded_job import ShardTask

tasks = [ShardTask(**task) for task in json.loads(sys.argv[2])]
run_rank(sys.argv[1], tasks, 1, 1)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    """The shipped manuals and guides, cut into many files."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = []
    for name in ("package:manuals.jsonl.zst", "package:guides.jsonl.zst"):
        for record in read_input(name, locate(name, "test"), ReadLimits()):
            assert isinstance(record, InputRecord)
            texts.append({"text": record.content.decode(), "url": record.url})
    for shard in range(SHARDS):
        lines = [json.dumps(row) + "\n" for row in texts[shard::SHARDS]]
        (folder / f"{shard:02d}.jsonl").write_text("".join(lines))
    return CorpusConfig(inputs=(str(folder),), consent=ConsentConfig(unknown_host="allow"))


def files(folder: Path) -> dict[str, bytes]:
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def test_ranks_that_die_leave_what_undisturbed_ones_leave(
    config: CorpusConfig, tmp_path: Path
) -> None:
    draw = random.Random(20261122)
    calm, storm = tmp_path / "calm", tmp_path / "storm"
    for folder in (calm, storm):
        folder.mkdir()
    filter_inputs(config.filter_config, Workspace(folder=calm, execution=LocalExecutor(workers=1)))
    place = Workspace(folder=storm, execution=LocalExecutor(workers=2))
    job = filter_batch(config.filter_config, place)
    plan = str(write_job_spec(job))
    killed = 0
    for world in (6, 5, 7):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, plan, json.dumps(dealt)], env=environment()
            )
            for dealt in ([asdict(task) for task in job.shards[r::world]] for r in range(world))
        ]
        for rank in draw.sample(ranks, world - 2):
            time.sleep(draw.uniform(0.1, 0.9))
            killed += rank.poll() is None
            rank.send_signal(signal.SIGKILL)
        for rank in ranks:
            if draw.random() < 0.5:
                rank.kill()
            rank.wait()
    assert killed >= 5
    done = sorted((storm / MANIFESTS).glob("*.json"))
    assert done
    # One shard is poisoned after it was proven, another loses its proof.
    victim = storm / f"documents-{done[0].stem}.parquet"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done[-1].write_text(done[-1].read_text()[:-30])
    filter_inputs(config.filter_config, place)
    assert files(storm) == files(calm)
