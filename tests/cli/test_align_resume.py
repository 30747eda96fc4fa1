"""`stamm run align.qrpo` on a model's own answers, killed at any moment, ends with the same bits."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import command, contents, environment

pytestmark = pytest.mark.slow  # each test needs whole runs

PROMPTS = [f"What is {n} and {n}?" for n in range(6)]
SETTINGS = (
    "n=6", "select.candidates=4", "rounds=2", "sampling.max_new_tokens=12", "reward=Length",
    "reward.smallest=10", "reward.largest=24", "select.take=all", "test_prompts=prompts.jsonl",
    "test_n=2", "train.batch.0.size=2", "train.epochs=2", "train.engine.checkpoint_every=2",
    "train.engine.threads=1", "reference.answers_per_shard=4",
)  # fmt: skip
ARM = Path("arms") / "qrpo"


def start(folder: Path, model: Path) -> subprocess.Popen[bytes]:
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS)
    )
    words = ["run", "align.qrpo", f"run={model}", "prompts=prompts.jsonl", *SETTINGS]
    return subprocess.Popen(
        command(*words, "--out", "run"),
        cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(folder: Path, model: Path) -> dict[str, bytes]:
    process = start(folder, model)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors.decode()[-3000:]
    return contents(folder / "run")


@pytest.fixture(scope="module")
def whole(
    smoke_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, bytes]]:
    """The model to start from, and the files of a run that met no fault."""
    model = smoke_run / "arms" / "xielu"
    return model, finish(tmp_path_factory.mktemp("whole"), model)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "sampling": lambda run: (run / "samples" / "round1" / "prompts-00000.jsonl").exists(),
    "scoring": lambda run: (run / "samples" / "round1" / "completions.jsonl").exists(),
    "preparing": lambda run: (run / "data" / "round1" / "examples.parquet").exists(),
    "training, round 1": lambda run: lines(run / "arms" / "qrpo-round1" / "metrics.jsonl") >= 3,
    "training, round 2": lambda run: lines(run / ARM / "metrics.jsonl") >= 5,
    "a checkpoint": lambda run: any((run / ARM / "checkpoints").glob(".*")),
    "comparing": lambda run: (run / ARM / "model" / "model.safetensors").exists(),
}


def test_killed_at_every_step_it_ends_with_the_same_bits(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    model, expected = whole
    killed = []
    for name, reached in MOMENTS.items():
        process = start(tmp_path, model)
        began = time.monotonic()
        while process.poll() is None and not reached(tmp_path / "run"):
            assert time.monotonic() - began < 250, name
            time.sleep(0.001)
        process.kill()
        process.communicate()
        killed += [name] if process.returncode == -signal.SIGKILL else []
    assert len(killed) >= len(MOMENTS) - 1, killed
    found = finish(tmp_path, model)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert f"{ARM}/model/model.safetensors" in found


def test_killed_at_random_moments_it_ends_with_the_same_bits(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    model, expected = whole
    draw = random.Random(16)
    kills = 0
    for _ in range(5):
        process = start(tmp_path, model)
        try:
            process.wait(timeout=draw.uniform(1.5, 7.0))
            break  # it ended before it was killed
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    assert kills >= 2
    assert finish(tmp_path, model) == expected
