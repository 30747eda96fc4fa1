"""The ladder of docs/evidence.md: its plan, the rates of its rule, and its results, as JSON on standard output.

    python -m tools.ladder plan > docs/evidence/ladder_plan.json
    python -m tools.ladder tune RUN JOBS size=… tokens_a_parameter=… scale=… rates=grid|near packed=RUN
    python -m tools.ladder rates RUN [RUN ...] > docs/evidence/ladder_rates.json
    python -m tools.ladder results RUN [RUN ...] > docs/evidence/ladder.json
    stamm compare RUN RUN ... predict=PARAMETERSxTOKENS --out docs/evidence/ladder_prediction_SCALE.json

The plan is committed before the first counted run. `tune` executes the tuning runs of a point of `compare.ladder` in the folder RUN, and `rates`
reads those of the four points that the plan names, for each scale; what it prints under "rule" is what
`stamm.recipes.ladder` has to hold. A prediction is committed before the point that it predicts is run, from runs of one scale.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stamm.compare.prediction import LossPoint, predict_losses
from stamm.compare.verb import arm_costs, compare
from stamm.models.flops import count_parameters
from stamm.recipes.execute import RecipeRun
from stamm.recipes.ladder import (
    LENGTH_POWER,
    RATES,
    SHAPE_FACTORS,
    SHIFTS,
    SIZES,
    TRIED_FACTORS,
    WIDTH_POWER,
    ladder,
)
from stamm.statistics.scaling_law import LEAST_POINTS
from tools.evidence_studies import diverged

SCALES = ("matched", "as_is")
# Points whose rates are tuned: three that the rule is fitted to, and one that tests it.
TUNED, TEST = ((0.35, 1.0), (0.7, 1.0), (0.35, 5.0)), (0.7, 5.0)
TEST_NATS = 0.01  # that the rule may cost at the point of the test
FITTED = ((0.35, 1.0), (0.35, 5.0), (0.35, 20.0), (0.7, 1.0), (0.7, 5.0), (1.35, 1.0), (1.35, 5.0), (2.65, 1.0))  # fmt: skip
# By scale: the points that are predicted before they are run.
PREDICTED = {"matched": ((0.7, 20.0), (1.35, 20.0)), "as_is": ((0.7, 20.0),)}
FLOPS_A_SECOND = 45e9  # of one thread, an AMD EPYC with AVX-512; 60e9 at 1.3 M parameters


def plan() -> dict[str, Any]:
    """Points, seeds, rule and hours of the ladder."""
    tuned = [_point(*at, s, "grid") for s in SCALES for at in TUNED]
    tuned += [_point(*TEST, s, "near") for s in SCALES]
    counted = [_point(*at, s, "rule") for s in SCALES for at in (*FITTED, *PREDICTED[s])]
    hours = math.fsum(point["core_hours"] for point in (*tuned, *counted))
    return {
        "schema": 1,
        "recipe": "compare.ladder",
        "arms": list(RATES[SCALES[0]]),
        "rule": {
            "text": "rate = rate at (0.35, 1) * (64 / d_model)^width_power * (D0 / D)^length_power: the best rates "
            "of three tuned points, by a parabola in ln(rate), give the rates and one pair of powers for all arms "
            "of both scales. The rate of the shapes is that times the factor with the least sum of its least losses at the "
            "three points, by scale. At the point of the test half, one and two times the rule's rate are tried with its factor: the loss at the rule's rate may exceed the best "
            f"by {TEST_NATS:g} nats in no arm; otherwise rates of larger points are tuned (rates=near).",
            "test_nats": TEST_NATS,
            "width_power": WIDTH_POWER,
            "length_power": LENGTH_POWER,
            "rates": RATES,
            "shape_factors": SHAPE_FACTORS,
            "grid": list(SHIFTS),
            "factors": list(TRIED_FACTORS),
        },
        "text": "that of docs/log/2026-11-24-claims.md: 14.1 M tokens for training with a vocabulary of 2,048, so "
        "that runs of more tokens read it again",
        "tuned": tuned,
        "test": list(TEST),
        "points": counted,
        "predicted": PREDICTED,
        "prediction": "L(N, D) = E + A / N^alpha + B / D^beta by arm over the points of the same scale that are "
        "not predicted; committed before the first run of the first predicted point. It hits where the measured "
        "mean lies within its 95 % interval.",
        "flops_a_second": FLOPS_A_SECOND,
        "core_hours": round(hours, 1),
    }


def _point(size: float, length: float, scale: Any, rates: Any) -> dict[str, Any]:
    config = ladder(size, length, scale, rates)
    costs = arm_costs(config)
    seeds = config.seeds if rates == "rule" else ()  # tuning ends with the plan
    runs = len(seeds) + costs[0].trials
    flops = sum(arm.flops for arm in costs) * runs / (len(config.seeds) + costs[0].trials)
    parameters = count_parameters(costs[0].run.model).total
    return {
        "size": size,
        "tokens_a_parameter": length,
        "scale": scale,
        "seeds": list(seeds),
        "parameters": parameters,
        "tokens": costs[0].run.total_sequences() * costs[0].run.context,
        "core_hours": round(flops / FLOPS_A_SECOND / 3600, 2),
        "command": f"stamm compare ladder size={size:g} tokens_a_parameter={length:g} scale={scale}"
        + (f" rates={rates}" if rates != "rule" else ""),
    }


def tune(run: Path, jobs: int, settings: Sequence[str]) -> None:
    """Execute the tuning runs of a point, up to its plan."""
    compare("ladder", *settings, out=run, jobs=jobs, before=to_the_plan)


def to_the_plan(run: RecipeRun) -> None:
    """Leave out what follows the plan."""
    names = [step.name for step in run.steps]
    run.steps = run.steps[: names.index("plan") + 1]


def rates(runs: Sequence[Path]) -> dict[str, Any]:
    """Trials of tuned points, [rate, loss, factor of the rate of the shapes], and the rule that they give."""
    points = []
    for run in runs:
        config = _read(run / "config.json")["config"]
        planned = _read(run / "plan" / "plan.json")["arms"][0]
        model, widths = config["pretrain"]["model"], {width: size for size, width in SIZES.items()}
        trials = {
            path.parents[1].name: [
                [trial["rate"], trial["loss_nats"], trial["shape_factor"]]
                for trial in _read(path)["trials"]
            ]
            for path in sorted(run.glob("tune/*/chosen/chosen.json"))
        }
        points.append(
            {
                "size": widths[model["d_model"]],
                "tokens_a_parameter": float(round(planned["tokens"] / planned["parameters"])),
                "scale": "matched" if config["matched"].get("scale") else "as_is",
                "tokens": planned["tokens"],
                "arms": trials,
            }
        )
    return {"schema": 1, "points": points, "rule": fitted_rule(points)}


def best_rate(trials: Sequence[Sequence[Any]]) -> float:
    """The minimum of the parabola in ln(rate) through the best of the trials, [rate, loss, …], and its neighbours.

    Raises   ValueError where the best is at an edge of the grid
    """
    losses = [_loss(trial) for trial in trials]
    at = losses.index(min(losses))
    if not 0 < at < len(trials) - 1:
        raise ValueError(f"the best rate, {trials[at][0]:g}, is at an edge of its grid")
    x = [math.log(trial[0]) for trial in trials[at - 1 : at + 2]]
    left, middle, right = losses[at - 1 : at + 2]
    if not math.isfinite(left + right):
        return float(trials[at][0])
    before, after = x[1] - x[0], x[2] - x[1]
    falls, rises = (left - middle) / before, (right - middle) / after
    return math.exp(x[1] + 0.5 * (falls * after - rises * before) / (falls + rises))


def best_factor(trials: Sequence[Sequence[Sequence[Any]]]) -> float | None:
    """The factor of the rate of the shapes with the least sum, over points, of its least loss; None without one.

    Raises   ValueError where it is the largest that was tried
    """
    tried = list(dict.fromkeys(trial[2] for point in trials for trial in point))
    if tried == [None]:
        return None
    sums = [math.fsum(min(map(_loss, _with(point, f))) for point in trials) for f in tried]
    best = tried[sums.index(min(sums))]
    if best == max(tried):
        raise ValueError(f"the best factor, {best:g}, is at an edge of its grid")
    return float(best)


def _loss(trial: Sequence[Any]) -> float:
    """Of [rate, loss, …]; infinite where the run diverged."""
    return math.inf if trial[1] is None else float(trial[1])


def _with(trials: Sequence[Sequence[Any]], factor: float | None) -> list[Sequence[Any]]:
    return [trial for trial in trials if trial[2] == factor]


def fitted_rule(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rates by scale and arm at the smallest point, and the two powers, by least squares in ln(rate).

    The rate of the shapes has `best_factor` at the fitted points of a scale, and the rates are the best with it. "test"
    has the loss at the rule's rate minus the best of all trials at the point of the test, in nats, by linear
    interpolation in ln(rate).
    """
    fitted = [point for point in points if _place(point) in TUNED]
    cells = sorted({(point["scale"], arm) for point in fitted for arm in point["arms"]})
    first = min(point["tokens"] for point in fitted)
    factors = {
        (scale, arm): best_factor([p["arms"][arm] for p in fitted if p["scale"] == scale])
        for scale, arm in cells
    }

    def shifts(point: Mapping[str, Any]) -> list[float]:
        width = SIZES[point["size"]] / min(SIZES.values())
        return [-math.log(width), -math.log(point["tokens"] / first)]

    rows = [
        (
            [float(cell == (point["scale"], arm)) for cell in cells] + shifts(point),
            math.log(best_rate(_with(trials, factors[point["scale"], arm]))),
        )
        for point in fitted
        for arm, trials in point["arms"].items()
    ]
    solved = np.linalg.lstsq(
        np.array([row for row, _ in rows]),
        np.array([rate for _, rate in rows]),
        rcond=None,
    )[0]
    base, powers = dict(zip(cells, solved.tolist(), strict=False)), solved[-2:].tolist()
    test = []
    for point in points:
        for arm, trials in point["arms"].items() if _place(point) == TEST else ():
            place = base[point["scale"], arm] + float(np.dot(powers, shifts(point)))
            mine = _with(trials, factors[point["scale"], arm]) or trials  # with the rule's factor
            grid, losses = [math.log(trial[0]) for trial in mine], [_loss(trial) for trial in mine]
            if not grid[0] < place < grid[-1]:
                raise ValueError(f"{arm}: the rule's rate is not in the grid of the test")
            excess = float(np.interp(place, grid, losses)) - min(map(_loss, trials))
            test.append({"scale": point["scale"], "arm": arm, "excess_nats": round(excess, 5)})
    return {
        "rates": {
            scale: {arm: math.exp(base[scale, arm]) for s, arm in cells if s == scale}
            for scale in dict(cells)
        },
        "shape_factors": {
            scale: factors[scale, arm] for scale, arm in cells if factors[scale, arm]
        },
        "width_power": powers[0],
        "length_power": powers[1],
        "test": test,
    }


def results(runs: Sequence[Path]) -> dict[str, Any]:
    """Finished points, each with the losses of its arms by seed and its differences.

    Raises   ValueError for a point that deviates from its plan, has a diverged run, or not all planned seeds
    """
    points = []
    for run in runs:
        found, plan_file = _read(run / "comparison.json"), _read(run / "plan" / "plan.json")
        if found["exploratory"]:
            raise ValueError(f"{run} deviates from its plan: {found['sentences'][-1]}")
        lines = found["lines"]
        if gone := diverged(lines):
            raise ValueError(f"{run}: {gone}")
        if any(line["bits"]["count"] < len(plan_file["seeds"]) for line in lines):
            raise ValueError(f"{run} is not finished")
        points.append(
            {
                "comparison": run.name,
                "scale": "matched" if found["scale"] else "as_is",
                "baseline": found["baseline"],
                "plan_sha256": found["plan_sha256"],
                "parameters": {line["name"]: line["parameters"] for line in lines},
                "tokens": {line["name"]: line["tokens"] for line in lines},
                "rates": {line["name"]: line["rate"] for line in lines},
                "log_tokens": {line["name"]: line["log_tokens"] for line in lines},
                "bits": {name: seeds["bits_per_byte"] for name, seeds in found["by_seed"].items()},
            }
        )
    points.sort(key=lambda p: (p["scale"], min(p["parameters"].values()), min(p["tokens"].values())))  # fmt: skip
    return {"schema": 1, "points": points, "laws": {s: laws(points, s) for s in SCALES}}


def laws(points: Sequence[Mapping[str, Any]], scale: str) -> list[dict[str, Any]]:
    """The law of each arm at one scale, with the intervals of a bootstrap over seeds; none below five points."""
    mine = [point for point in points if point["scale"] == scale]
    sizes, lengths = ({p[key][p["baseline"]] for p in mine} for key in ("parameters", "tokens"))
    if len(mine) < LEAST_POINTS or min(len(sizes), len(lengths)) < 2:
        return []
    losses = [
        LossPoint(
            comparison=point["comparison"],
            parameters=point["parameters"],
            tokens=point["tokens"],
            bits={a: {int(s): v for s, v in bits.items()} for a, bits in point["bits"].items()},
        )
        for point in mine
    ]
    found = predict_losses(losses, mine[0]["baseline"], max(sizes), max(lengths))
    return [
        {key: value for key, value in asdict(arm).items() if key not in ("loss", "difference")}
        for arm in found.arms
    ]


def _place(point: Mapping[str, Any]) -> tuple[float, float]:
    return point["size"], point["tokens_a_parameter"]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    name, *words = sys.argv[1:] or [""]
    if name == "tune":
        tune(Path(words[0]), int(words[1]), words[2:])
        sys.exit()
    folders = [Path(word) for word in words]
    parts = {"plan": plan, "rates": lambda: rates(folders), "results": lambda: results(folders)}
    if name not in parts:
        sys.exit(f"ladder: {name!r} is not plan, tune, rates or results")
    print(json.dumps(parts[name](), indent=1))
