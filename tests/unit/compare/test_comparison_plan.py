"""The plan of a comparison, its looks, and what is called exploratory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file
from stamm.compare.config import LookConfig, PlanConfig, config_hash
from stamm.compare.job import judgement_in, run
from stamm.compare.look_job import run as look
from stamm.compare.plan_job import pilot_spread, stopping_rule
from stamm.compare.plan_job import run as plan
from stamm.compare.records import PlannedArm
from stamm.pages.config import ReportConfig
from stamm.runs.job import Workspace
from tests.unit.compare.test_comparison import LOSSES, change, held_out, write_comparison
from tests.unit.reports.run_folder import write


def registered(root: Path, **changes: Any) -> Path:
    """`root` with a plan that was written before its runs, and their receipts."""
    stored = json.loads((root / "config.json").read_text())["config"]
    arms = tuple(
        PlannedArm(
            name=name, activation=name, width=9, parameters=9, sequences=240, tokens=2400, rate=0.0
        )
        for name in LOSSES
    )
    config = PlanConfig(
        config_sha256=config_hash(stored), evaluated="the final weights", baseline="swiglu",
        matched="EqualParameters", confidence=0.95, seeds=tuple(stored["seeds"]),
        looks=tuple(stored.get("looks") or (len(stored["seeds"]),)), arms=arms,
        difference=None, pilot="",
    )  # fmt: skip
    inputs = {f"chosen.{name}": root / f"tune/{name}/chosen/chosen.json" for name in LOSSES}
    (root / "plan").mkdir()
    plan(replace(config, **changes), Workspace(folder=root / "plan", inputs=inputs))
    sha256 = sha256_file(root / "plan" / "plan.json")
    receipt(root, "plan", 1.0, {"plan.json": {"sha256": sha256}})
    for name in LOSSES:
        for seed in stored["seeds"]:
            receipt(root, f"pretrain.{name}.{seed}", 2.0, {})
            trained(root, name, seed, 2e-3, 240)
    return root


def receipt(root: Path, step: str, ended: float, outputs: dict[str, Any]) -> None:
    facts = {"schema": 1, "step": step, "seconds": 1.0, "ended": ended, "outputs": outputs}
    write(root / "steps" / f"{step}.json", facts)


def trained(root: Path, name: str, seed: int, peak: float, sequences: int) -> None:
    path = root / "final" / name / str(seed) / "config.json"
    stored = json.loads(path.read_text())
    stored["config"] |= {"schedule": {"peak": peak}, "sequences": sequences}
    write(path, stored)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return registered(write_comparison(tmp_path / "mine"))


def test_a_report_names_the_hash_of_the_plan(root: Path) -> None:
    found = judgement_in(root)
    sha256 = sha256_file(root / "plan" / "plan.json")
    assert not found.exploratory and found.plan_sha256 == sha256
    assert any(one.endswith(f"plan.json, SHA-256 {sha256}.") for one in found.sentences)
    stored = json.loads((root / "plan" / "plan.json").read_text())
    assert [arm["rate"] for arm in stored["arms"]] == [2e-3] * 3
    assert stored["detectable"] > 3 and stored["spread"] is None
    checked = subprocess.run(
        ["sha256sum", "-c", "plan.sha256"], cwd=root / "plan", capture_output=True, check=False
    )
    assert checked.returncode == 0
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    assert sha256 in (root / "comparison.html").read_text()
    assert json.loads((root / "comparison.json").read_text())["plan_sha256"] == sha256


def add_seed(root: Path) -> None:
    folder = root / "final" / "xielu" / "9"
    for name in ("config.json", "summary.json", "metrics.jsonl"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes((root / "final" / "xielu" / "1" / name).read_bytes())


def edit_plan(root: Path) -> None:
    change(root / "plan" / "plan.json", confidence=0.9)


def other_measure(root: Path) -> None:
    change(root / "plan" / "plan.json", primary="BLiMP")
    sha256 = sha256_file(root / "plan" / "plan.json")
    receipt(root, "plan", 1.0, {"plan.json": {"sha256": sha256}})


def other_configuration(root: Path) -> None:
    stored = json.loads((root / "config.json").read_text())["config"]
    change(root / "config.json", config={**stored, "confidence": 0.9})


@pytest.mark.parametrize(
    ("deviate", "said"),
    [
        (add_seed, "xielu has seeds that are not in the plan: 9"),
        (lambda root: trained(root, "relu2", 2, 3e-3, 240), "relu2 with seed 2 has the learning rate 0.003, not 0.002"),
        (lambda root: trained(root, "relu2", 2, 2e-3, 480), "relu2 with seed 2 has 480 sequences, not 240"),
        (edit_plan, "plan.json is not the file that was registered"),
        (other_measure, "the plan has another primary measure"),
        (other_configuration, "the configuration is not the plan's"),
        (lambda root: receipt(root, "pretrain.xielu.1", 0.5, {}), "runs were finished before the plan was written"),
        (lambda root: (root / "plan" / "plan.json").unlink(), "no plan was written before the runs"),
    ],
)  # fmt: skip
def test_what_deviates_from_the_plan_is_exploratory(root: Path, deviate: Any, said: str) -> None:
    deviate(root)
    found = judgement_in(root)
    assert found.exploratory
    assert found.sentences[-1] == f"Exploratory: {said}."


def test_the_page_says_exploratory(root: Path) -> None:
    add_seed(root)
    run(ReportConfig(), Workspace(folder=root, inputs={"run": root}))
    assert "<li>exploratory</li>" in (root / "comparison.html").read_text()


def test_keys_that_change_no_number_are_not_in_the_hash() -> None:
    config = {"seeds": [1], "execution": {"kind": "Local"}, "pretrain": {"trackers": [1]}}
    assert config_hash(config) == config_hash({"seeds": [1], "pretrain": {}})
    assert config_hash(config) != config_hash({"seeds": [2], "pretrain": {}})


def with_looks(tmp_path: Path, apart: float) -> Path:
    """Eight seeds with looks after 4 and 8; xielu is `apart` below, relu2 lost with seed 2."""
    root = write_comparison(tmp_path / "mine")
    stored = json.loads((root / "config.json").read_text())["config"]
    seeds = list(range(1, 9))
    change(root / "config.json", config={**stored, "seeds": seeds, "looks": [4, 8]})
    for name in LOSSES:
        for seed in seeds:
            folder = root / "final" / name / str(seed)
            for file in ("config.json", "summary.json", "metrics.jsonl"):
                folder.mkdir(exist_ok=True)
                source = root / "final" / name / "1" / file
                (folder / file).write_bytes(source.read_bytes())
            bits = 2.3 + 0.1 * (seed % 3)
            bits -= (apart + 0.002 * (seed % 2)) if name == "xielu" else 0.0
            bits = float("nan") if (name, seed) == ("relu2", 2) else bits
            write(folder / "evaluate" / "held_out.json", held_out(bits))
    return root


@pytest.mark.parametrize(
    ("apart", "difference", "decision"),
    [
        (0.1, None, "shown"),
        (-0.001, 0.05, "excluded"),
        (-0.001, 0.0001, "open"),
        (-0.001, None, "open"),
    ],
)
def test_a_look_stops_when_every_arm_is_decided(
    tmp_path: Path, apart: float, difference: float | None, decision: str
) -> None:
    root = with_looks(tmp_path, apart)
    (root / "looks" / "4").mkdir(parents=True)
    place = Workspace(folder=root / "looks" / "4", inputs={"run": root})
    look(LookConfig(seeds=4, difference=difference), place)
    found = json.loads((root / "looks" / "4" / "look.json").read_text())
    assert found["decisions"] == {"relu2": "diverged", "xielu": decision}
    assert found["stop"] == (decision != "open")
    assert list(found["p_values"]) == ["xielu"]
    for name in LOSSES:  # what is left of a comparison that stopped
        for seed in range(5, 9):
            (root / "final" / name / str(seed) / "summary.json").unlink()
    said = " ".join(judgement_in(root).sentences)
    assert "This is look 1 of 2, after 4 of at most 8 seeds." in said
    assert ("every arm is decided" in said) == found["stop"]


def test_seeds_between_two_looks_wait_for_the_next(tmp_path: Path) -> None:
    root = with_looks(tmp_path, 0.1)
    assert "This is look 2 of 2" in " ".join(judgement_in(root).sentences)
    (root / "final" / "swiglu" / "7" / "summary.json").unlink()
    found = judgement_in(root)
    assert "Finished seeds that the next look will count: 2." in " ".join(found.sentences)
    assert found.lines[0].bits is not None and found.lines[0].bits.count == 4
    # O'Brien-Fleming at half of the seeds, two tails of 0.0125: 0.000825; t with 3 degrees 13.78, over sqrt 4
    assert "is shown from 6.9 times its standard deviation" in " ".join(found.sentences)
    (root / "final" / "swiglu" / "2" / "summary.json").unlink()
    found = judgement_in(root)
    assert "No verdict yet: the first look is after 4 seeds, and 1 are finished." in found.sentences
    assert all(line.difference is None for line in found.lines)


def test_the_stopping_rule_as_text() -> None:
    assert stopping_rule((8,), None) == "The comparison ends after 8 seeds, with one look."
    assert "differences of 0.02 bits per byte and more" in stopping_rule((8, 16), 0.02)


def test_a_pilot_gives_the_spread(root: Path, tmp_path: Path) -> None:
    # -0.099, -0.101, -0.100
    assert pilot_spread(str(root), "swiglu", ["xielu"]).value == pytest.approx(0.001)
    other = write_comparison(tmp_path / "unfinished")
    for path in (other / "final").glob("*/[23]/summary.json"):
        path.unlink()
    with pytest.raises(ConfigError, match="has no two arms that two seeds finished"):
        pilot_spread(str(other), "swiglu", ["xielu"])
    assert pilot_spread(str(root), "geglu", ["golu"]).arms == ("relu2", "xielu")
