"""A comparison whose arms override optimizer, schedule, masks and training of structured matrices."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import command, environment

pytestmark = pytest.mark.slow  # each test needs whole runs

RECIPE = '''"""Low-rank layers; the same self-guided, with another recipe."""

from dataclasses import replace

from stamm.losses.config import Goldfish
from stamm.models.config import LowRank, PlainFFN, SelfGuide, Structured
from stamm.optim.config import AdamW
from stamm.optim.schedules import Cosine
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.comparisons import smoke
from stamm.recipes.matching import EqualFlops
from stamm.recipes.arm import Arm, ArmOverrides


def mine() -> Comparison:
    """Two arms."""
    ffn = PlainFFN(width=96, activation="gelu", linear=LowRank(rank=8))
    other = ArmOverrides(
        optimizer=AdamW(),
        schedule=Cosine(),
        goldfish=Goldfish(k=4, h=4),
        qk_norm=False,
        structured=Structured(guide=SelfGuide(reduce_flop=False)),
    )
    base = smoke()
    return replace(
        base,
        pretrain=replace(base.pretrain, goldfish=None),
        arms=(Arm(name="low_rank", ffn=ffn), Arm(name="other", ffn=ffn, overrides=other)),
        baseline="low_rank",
        matched=EqualFlops(),
        tuning=Tuning(rates=(3e-3, 9e-3), refinements=0, length=0.5),
    )
'''


def stamm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip


def test_arms_are_trained_with_what_they_override_and_observed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    done = stamm(tmp_path, "compare", "mine.py", "--out", "run")
    assert done.returncode == 0, done.stderr
    runs = {
        name: json.loads((tmp_path / f"run/final/{name}/1/config.json").read_text())["config"]
        for name in ("low_rank", "other")
    }
    assert [runs[n]["optimizer"]["kind"] for n in ("low_rank", "other")] == ["AdEMAMix", "AdamW"]
    assert runs["other"]["schedule"]["kind"] == "Cosine"
    # The peak is the arm's own, chosen by tuning.
    assert runs["other"]["schedule"]["peak"] in (3e-3, 9e-3)
    assert runs["low_rank"]["goldfish"] is None
    assert runs["other"]["goldfish"]["k"] == 4
    assert not runs["other"]["model"]["qk_norm"]
    # Guides cost work, so the guided arm is shorter.
    assert runs["other"]["sequences"] < runs["low_rank"]["sequences"]
    plain, kept = (
        json.loads((tmp_path / f"run/final/{name}/1/summary.json").read_text())
        for name in ("low_rank", "other")
    )
    half_a_step = kept["flops"] / kept["steps"] / 2
    assert abs(plain["flops"] - kept["flops"]) <= 1.2 * half_a_step, "without its guides"
    assert kept["learned_tokens"] < 0.9 * kept["trained_tokens"]
    verdict = json.loads((tmp_path / "run/comparison.json").read_text())
    assert {line["name"] for line in verdict["lines"]} == {"low_rank", "other"}
    assert not verdict["exploratory"]
    seen = stamm(tmp_path, "observe", "run", "tokens=128", "threads=1")
    assert seen.returncode == 0, seen.stderr
    found = json.loads((tmp_path / "run/observe_comparison.json").read_text())
    assert [(arm["name"], arm["seeds"]) for arm in found["arms"]] == [
        ("low_rank", [1, 2]), ("other", [1, 2]),
    ]  # fmt: skip
