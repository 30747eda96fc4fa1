"""The ladder's rule of rates, results and plan, from files of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stamm.recipes.execute import RecipeRun
from stamm.recipes.ladder import LENGTH_POWER, RATES, SHAPE_FACTORS, SIZES, WIDTH_POWER
from stamm.recipes.resolve import resolve
from tests.unit.reports.run_folder import write
from tools.evidence import FOLDER
from tools.ladder import (
    SCALES,
    TEST,
    TUNED,
    best_factor,
    best_rate,
    fitted_rule,
    laws,
    plan,
    rates,
    results,
    to_the_plan,
)

ARMS = ("swiglu", "relu2", "xielu")


def test_the_committed_plan_is_that_of_the_recipe() -> None:
    assert json.loads((FOLDER / "ladder_plan.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(plan())
    )


def test_the_best_rate_is_the_minimum_of_a_parabola() -> None:
    trials = [(rate, (math.log(rate / 3e-3)) ** 2) for rate in (1e-3, 2e-3, 4e-3, 8e-3)]
    assert best_rate(trials) == pytest.approx(3e-3)
    assert best_rate([trials[0], trials[2], trials[3]]) == pytest.approx(3e-3)  # of unequal steps
    assert best_rate([(1e-3, 2.0), (2e-3, 1.0), (4e-3, None)]) == 2e-3
    with pytest.raises(ValueError, match=r"the best rate, 0\.008, is at an edge"):
        best_rate([(2e-3, 3.0), (4e-3, 2.0), (8e-3, 1.0)])


def test_the_best_factor_has_the_least_sum_over_points() -> None:
    first = [(1e-3, 2.0, 1.0), (2e-3, 1.0, 1.0), (1e-3, None, 10.0), (2e-3, 1.5, 10.0), (1e-3, 9.0, 100.0)]  # fmt: skip
    second = [(1e-3, 4.0, 1.0), (1e-3, 3.0, 10.0), (1e-3, 9.0, 100.0)]
    assert best_factor([first]) == 1.0
    assert best_factor([first, second]) == 10.0
    assert best_factor([[(1e-3, 2.0, None)]]) is None
    with pytest.raises(ValueError, match="the best factor, 10, is at an edge"):
        best_factor([[(1e-3, 4.0, 1.0), (1e-3, 3.0, 10.0)]])


def tuned_run(folder: Path, at: tuple[float, float], scale: str, optimum: float) -> Path:
    size, length = at
    parameters = round(size * 1e6)
    write(
        folder / "config.json",
        {
            "config": {
                "pretrain": {"model": {"d_model": SIZES[size]}},
                "matched": {"scale": {"deviation": 0.6} if scale == "matched" else None},
            }
        },
    )
    tokens = round(length * parameters)
    write(folder / "plan/plan.json", {"arms": [{"parameters": parameters, "tokens": tokens}]})
    for arm in ARMS:
        factors = (1.0, 10.0, 100.0) if arm == "xielu" and at != TEST else (None,)
        trials = [
            {"rate": optimum * 2**k, "shape_factor": f, "loss_nats": 0.1 * (k * math.log(2)) ** 2 + (f in {1.0, 100.0})}
            for k in (range(-1, 2) if at == TEST else range(-2, 3)) for f in factors
        ]  # fmt: skip
        write(folder / f"tune/{arm}/chosen/chosen.json", {"trials": trials})
    return folder


def test_the_rule_is_fitted_to_three_points_and_tested_at_a_fourth(tmp_path: Path) -> None:
    runs = []
    for scale in SCALES:
        for at in (*TUNED, TEST):
            size, length = at
            tokens = round(length * round(size * 1e6)) / 350_000
            optimum = 8e-3 * (SIZES[size] / 64) ** -0.7 * tokens**-0.2
            # The test's optimum is 2^0.5 below the rule's rate: half a step of the grid.
            low = 2**-0.5 if at == TEST else 1.0
            runs.append(tuned_run(tmp_path / f"{scale}{size}{length}", at, scale, optimum * low))
    found = rates(runs)
    rule = found["rule"]
    assert rule["width_power"] == pytest.approx(0.7, abs=1e-6)
    assert rule["length_power"] == pytest.approx(0.2, abs=1e-6)
    assert {arm: rule["rates"]["matched"][arm] for arm in ARMS} == pytest.approx(
        dict.fromkeys(ARMS, 8e-3)
    )
    assert rule["shape_factors"] == {"as_is": 10.0, "matched": 10.0}
    assert len(rule["test"]) == 6
    excess = [one["excess_nats"] for one in rule["test"]]
    assert excess == pytest.approx([0.05 * math.log(2) ** 2] * 6, abs=1e-5)
    assert fitted_rule(found["points"]) == rule


@pytest.mark.skipif(not (FOLDER / "ladder_rates.json").is_file(), reason="no rates are tuned yet")
def test_the_recipe_holds_the_fitted_rates() -> None:
    found = json.loads((FOLDER / "ladder_rates.json").read_text(encoding="utf-8"))
    rule = fitted_rule(found["points"])
    assert rule == found["rule"]
    powers = [WIDTH_POWER, LENGTH_POWER]
    assert powers == pytest.approx([rule["width_power"], rule["length_power"]], abs=0.01)
    for scale, of_arms in rule["rates"].items():
        assert RATES[scale] == pytest.approx(of_arms, rel=0.01)
    assert rule["shape_factors"] == SHAPE_FACTORS


def finished(folder: Path, parameters: float, tokens: float, *, exploratory: bool = False) -> Path:
    loss = 1.0 + (parameters / 1e6) ** -0.3 + (tokens / 1e6) ** -0.2
    apart = {"swiglu": 0.0, "relu2": -0.1, "xielu": -0.05}
    lines = [
        {
            "name": arm, "parameters": parameters, "tokens": tokens, "rate": 1e-3, "log_tokens": None,
            "bits": {"count": 2},
        }
        for arm in ARMS
    ]  # fmt: skip
    by_seed = {
        arm: {"bits_per_byte": {"201": loss + apart[arm] + 1e-4, "202": loss + apart[arm] - 1e-4}}
        for arm in ARMS
    }
    found = {
        "lines": lines, "by_seed": by_seed, "exploratory": exploratory, "scale": "EqualStart", "baseline": "swiglu",
        "plan_sha256": "f", "sentences": ["Exploratory: why."],
    }  # fmt: skip
    write(folder / "comparison.json", found)
    write(folder / "plan/plan.json", {"seeds": [201, 202]})
    return folder


def test_results_hold_points_and_their_laws(tmp_path: Path) -> None:
    sizes = (0.35e6, 0.7e6, 1.4e6)
    runs = [
        finished(tmp_path / f"{size:g}x{share}", size, size * share)
        for size in sizes
        for share in (1, 5, 20)
    ]
    found = results(runs)
    assert len(found["points"]) == 9
    assert found["laws"]["as_is"] == []
    by_arm = {law["arm"]: law for law in found["laws"]["matched"]}
    for law in by_arm.values():
        assert law["law"]["parameter_power"] == pytest.approx(0.3, abs=0.01)
        assert law["law"]["token_power"] == pytest.approx(0.2, abs=0.01)
        ends = law["law_ends"]["token_power"]
        assert ends["low"] <= 0.2 + 1e-3
        assert ends["high"] >= 0.2 - 1e-3
        assert ends["high"] - ends["low"] < 0.02
    assert by_arm["relu2"]["law"]["floor"] == pytest.approx(0.9, abs=0.01)
    assert laws(found["points"][:4], "matched") == []
    with pytest.raises(ValueError, match=r"deviates from its plan: Exploratory: why\."):
        results([finished(tmp_path / "bad", 1e6, 1e6, exploratory=True)])
    write(tmp_path / "bad/plan/plan.json", {"seeds": [201, 202, 203]})
    finished_again = finished(tmp_path / "few", 1e6, 1e6)
    write(finished_again / "plan/plan.json", {"seeds": [201, 202, 203]})
    with pytest.raises(ValueError, match="is not finished"):
        results([finished_again])


def test_tuning_ends_with_the_plan(tmp_path: Path) -> None:
    run = RecipeRun(resolve("compare.ladder", ["rates=grid"]), tmp_path)
    to_the_plan(run)
    assert run.steps[-1].name == "plan"
    assert sum(step.name.startswith("tune.") for step in run.steps) == 36
    assert not [step for step in run.steps if step.name.startswith("pretrain.")]
