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

from tests.conftest import contents, environment
from tests.forked import Forked, Parent

pytestmark = pytest.mark.slow  # each test needs whole runs

PROMPTS = [f"What is {n} and {n}?" for n in range(6)]
SETTINGS = (
    "n=6", "select.candidates=4", "rounds=2", "sampling.max_new_tokens=12", "reward=Length",
    "reward.smallest=16", "reward.largest=40", "select.take=all", "test_prompts=prompts.jsonl",
    "test_n=2", "train.batch.0.size=2", "train.epochs=2", "train.engine.checkpoint_every=2",
    "train.engine.threads=1", "reference.answers_per_shard=4", "export=none", "audit=none",
)  # fmt: skip
ARM = Path("arms") / "qrpo"


class Recipe:
    """The recipe on one model, in any folder."""

    def __init__(self, parent: Parent, model: Path) -> None:
        self._parent, self._model = parent, model

    def start(self, folder: Path) -> Forked:
        """Start it."""
        return self._parent.start(self._words(folder), folder, environment())

    def finish(self, folder: Path) -> dict[str, bytes]:
        """Run it to its end; the files that it leaves."""
        done = self._parent.run(self._words(folder), folder, environment())
        assert done.returncode == 0, done.stderr[-3000:]
        return contents(folder / "run")

    def _words(self, folder: Path) -> list[str]:
        (folder / "prompts.jsonl").write_text(
            "".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS)
        )
        words = ["stamm", "run", "align.qrpo", f"run={self._model}", "prompts=prompts.jsonl"]
        return [*words, *SETTINGS, "--out", "run"]


@pytest.fixture(scope="module")
def recipe(parent: Parent, smoke_run: Path) -> Recipe:
    """The recipe on a trained model."""
    return Recipe(parent, smoke_run / "arms" / "xielu")


@pytest.fixture(scope="module")
def expected(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that met no fault."""
    return recipe.finish(tmp_path_factory.mktemp("whole"))


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
    recipe: Recipe, expected: dict[str, bytes], tmp_path: Path
) -> None:
    killed = []
    for name, reached in MOMENTS.items():
        process = recipe.start(tmp_path)
        began = time.monotonic()
        while process.poll() is None and not reached(tmp_path / "run"):
            assert time.monotonic() - began < 250, name
            time.sleep(0.001)
        process.kill()
        process.wait()
        killed += [name] if process.returncode == -signal.SIGKILL else []
    assert len(killed) >= len(MOMENTS) - 1, killed
    found = recipe.finish(tmp_path)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert f"{ARM}/model/model.safetensors" in found


def test_killed_at_random_moments_it_ends_with_the_same_bits(
    recipe: Recipe, expected: dict[str, bytes], tmp_path: Path
) -> None:
    draw = random.Random(16)
    kills = 0
    for _ in range(5):
        process = recipe.start(tmp_path)
        try:
            process.wait(timeout=draw.uniform(0.5, 4.0))
            break  # it ended before it was killed
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert kills >= 2
    assert recipe.finish(tmp_path) == expected
