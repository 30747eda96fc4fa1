"""Configurations that must give one trajectory, through the real command line.

To the bit where the same sums are made in the same order; elsewhere within what float32 sums of
another order differ by over thirty steps. Resumed runs are in test_faults.py, processes in
test_torchrun.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.starter import ARM, Starter
from tests.conftest import contents, environment
from tests.forked import Parent

pytestmark = pytest.mark.slow  # each test needs whole runs


@pytest.fixture
def starter(parent: Parent, smoke_run: Path, tmp_path: Path) -> Starter:
    """Starts runs in a folder of this test's own."""
    return Starter(parent, tmp_path, smoke_run / "pack")


def _learned(files: dict[str, bytes]) -> dict[str, bytes]:
    """What was learned and how: without the configurations, which differ, and their hashes."""
    return {name: data for name, data in files.items() if not name.endswith("config.json")}


def _metrics(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files[f"{ARM}/metrics.jsonl"].splitlines()]


def _close(found: dict[str, bytes], expected: dict[str, bytes], tolerance: float) -> None:
    """Losses within a tenth of `tolerance`, gradient norms within it."""
    one, other = _metrics(found), _metrics(expected)
    assert len(one) == len(other)
    bounds = {"train/loss_nats": 0.1 * tolerance, "optim/gradient_norm": tolerance}
    for key, bound in bounds.items():
        assert [line[key] for line in one] == pytest.approx(
            [line[key] for line in other], rel=bound
        )
    for key in ("step", "tokens", "train/kept_tokens", "optim/learning_rate"):
        assert [line[key] for line in one] == [line[key] for line in other]


@pytest.mark.parametrize("micro", [1, 4])
def test_one_at_a_time_is_eight_at_once(starter: Starter, micro: int) -> None:
    # Where a gradient is itself rounding, AdEMAMix divides it by its own size, and the weight moves by a
    # part of the learning rate: with eps = 1e-8 norms differ by up to 1.2e-5 here, with 1e-6 by 1.8e-6.
    batch = ("batch.0.size=8", "sequences=160", "optimizer.eps=1e-6")
    expected = starter.whole(*batch)
    _close(starter.whole(*batch, f"micro_batch={micro}", out="micro"), expected, 5e-6)


def test_compiled_is_eager(starter: Starter) -> None:
    expected = starter.whole("sequences=24")
    _close(starter.whole("sequences=24", "engine.compile=layers", out="compiled"), expected, 1e-4)


@pytest.mark.parametrize("change", ["async_checkpointing=True", "activation_checkpointing=layers"])
def test_what_only_costs_time_or_memory_changes_no_bit(starter: Starter, change: str) -> None:
    expected = _learned(starter.whole())
    assert _learned(starter.whole(f"engine.{change}", out="other")) == expected


def test_how_often_and_how_long_checkpoints_are_kept_changes_no_bit(starter: Starter) -> None:
    expected = starter.whole()
    found = starter.whole(
        "engine.checkpoint_every=7", "engine.keep_every=4", "engine.keep_checkpoints=1", out="other"
    )
    steps = sorted(int(p.name[-8:]) for p in (starter.place / "other" / ARM).glob("checkpoints/*"))
    assert steps == [4, 8, 12, 16, 20, 21, 24, 28, 30]  # 21: before the learning rate falls
    both = _learned(found).keys() & _learned(expected).keys()
    assert any("step-00000030" in name for name in both) and f"{ARM}/metrics.jsonl" in both
    assert [name for name in both if found[name] != expected[name]] == []


def test_threads_come_from_the_configuration_alone(starter: Starter) -> None:
    expected = starter.whole()
    done = subprocess.run(
        [sys.executable, "-m", "stamm", "run", "mine.py", f"pack={starter.pack}", "--out", "other"],
        cwd=starter.place,
        env={**environment(), "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert contents(starter.place / "other") == expected
