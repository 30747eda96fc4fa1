"""Runs that begin with another run's checkpoint, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Stamm

BATCH_TOKENS = 4 * 256  # of the smoke recipe
STAGE = {"context": 512, "theta": 1e6, "tokens": 4 * 1024, "batch": 2}


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_cooldown_as_long_as_the_runs_own_is_the_runs_own(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    """From the checkpoint that stays before the rate falls: 9 steps, the same bits."""
    own = _metrics(smoke_run / "arms" / "xielu")[21:]
    done = stamm(
        *("run", "pretrain.cooldown", f"run={smoke_run}", "arm=xielu"),
        *(f"tokens={9 * BATCH_TOKENS}", "--out", "cool"),
    )
    assert done.returncode == 0, done.stderr
    branched = _metrics(tmp_path / "cool" / "arms" / "xielu-cooldown")
    assert len(branched) == len(own) == 9
    for key in ("train/loss_nats", "optim/gradient_norm", "optim/learning_rate"):
        assert [line[key] for line in branched] == [line[key] for line in own]
    weights = "model/model.safetensors"
    left, right = (
        tmp_path / "cool/arms/xielu-cooldown" / weights,
        smoke_run / "arms/xielu" / weights,
    )
    assert left.read_bytes() == right.read_bytes()


def test_branches_are_planned_before_they_run(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    run = (f"run={smoke_run}", "arm=xielu", "--json")
    cool = stamm("plan", "pretrain.cooldown", *run, f"tokens={9 * BATCH_TOKENS}")
    stages = [f"stages.0.{key}={value}" for key, value in STAGE.items()]
    longer = stamm("plan", "pretrain.longer", *run, "peak=1e-3", *stages)
    plans = {**json.loads(cool.stdout), **json.loads(longer.stdout)}
    assert {name: (plan["tokens"], plan["steps"]) for name, plan in plans.items()} == {
        "xielu-cooldown": (9 * BATCH_TOKENS, 9),
        "xielu-512": (4 * 1024, 4),
    }
    for words, said in (
        (("plan", "pretrain.cooldown", "--sequences", "9"), "is set by its tokens"),
        (("plan", "compare.activations"), "has no plan. Use `stamm compare` with --dry-run"),
    ):
        refused = stamm(*words)
        assert refused.returncode == 2 and said in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_cooldown_says_what_it_needs(smoke_run: Path, tmp_path: Path, stamm: Stamm) -> None:
    run = f"run={smoke_run}"
    for words, said in (
        ((), "run is empty"),
        ((run, "tokens=9999"), "holds 3 arms. Set arm=NAME; there are: relu2, swiglu, xielu"),
        ((run, "arm=gelu", "tokens=9999"), "has no arm 'gelu'"),
        ((run, "arm=xielu"), "tokens = 0 is less than one step of 1024"),
        ((run, "arm=xielu", "tokens=9999", "step=30"), "no checkpoint of step 30 that fits"),
    ):
        done = stamm("run", "pretrain.cooldown", *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_longer_contexts_follow_one_another(smoke_run: Path, tmp_path: Path, stamm: Stamm) -> None:
    """Two stages; the optimizer goes on counting, or begins anew in each."""
    stages = [
        f"stages.{i}.{key}={value}"
        for i, stage in enumerate(
            (
                STAGE,
                {"context": 1024, "theta": 2e6, "tokens": 3 * 1024, "batch": 1},
            )
        )
        for key, value in stage.items()
    ]
    for moments, counts in (("keep", [34, 37]), ("restart", [4, 3])):
        done = stamm(
            *("run", "pretrain.longer", f"run={smoke_run}", "arm=xielu", "peak=1e-3"),
            *(f"moments={moments}", *stages, "--out", moments),
        )
        assert done.returncode == 0, done.stderr
        for context, count, last in ((512, counts[0], 4), (1024, counts[1], 3)):
            arm = tmp_path / moments / "arms" / f"xielu-{context}"
            state = json.loads((arm / f"checkpoints/step-{last:08d}/state.json").read_text())
            assert set(state["counts"]) == {count}
            described = json.loads((arm / "model" / "decoder.json").read_text())["decoder"]
            assert described["max_context"] == context
    assert (
        "the learning rate was 0"
        in stamm("run", "pretrain.longer", f"run={smoke_run}", "arm=xielu", *stages).stderr
    )
