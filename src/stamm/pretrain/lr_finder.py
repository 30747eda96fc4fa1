"""Learning-rate finder: the peak learning rate of each arm of a comparison, from short runs.

Short runs use the rates of a grid, and for an arm with trained shapes of its activation, where that is
asked for, each with several factors of their rate. Each refinement adds two rates: beyond the grid when the best is
at its edge, on both sides of the best when it is inside. Every arm gets the same number of runs,
wherever its best rate is. No torch here.

Reads    trial.0, trial.1, .. (folders of short runs); pace, where step times were measured
Writes   refined.json (the rates of two more runs), or chosen.json (the rate of the final runs)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stamm.base.bounds import Natural, NotNegative, PositiveShare
from stamm.base.config import validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_json
from stamm.base.schema import write_record
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.records import ChosenRate
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

SCHEMA = 1
REFINED, CHOSEN = "refined.json", "chosen.json"
FINAL, SHORT = "final", "short"  # entries of refined.json and chosen.json
_FACTOR = "shape_lr_factor"  # a field of every optimizer


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """Configuration of the learning-rate finder of one arm.

    arm      its name, and the key of its lengths in pace
    trials   number of short runs; 0: none, `rate` is taken
    rate     where there are no trials
    margin   the lowest rate is chosen whose score is at most this above the best, in nats per token
    tail     last fraction of a short run whose mean training loss is its score
    shaped   the short runs differ in optimizer.shape_lr_factor, too, and it is chosen with the rate
    """

    arm: str
    trials: Natural
    rate: NotNegative = 0.0
    margin: NotNegative = 0.0
    tail: PositiveShare = 0.1
    shaped: bool = False

    def __post_init__(self) -> None:
        validate(
            self,
            ("trials", self.trials != 1, "must be at least 2, or 0"),
            ("rate", (self.rate > 0) == (not self.trials), "must be given where trials is 0"),
        )


@dataclass(frozen=True, kw_only=True)
class ShortRun:
    """A short run: its peak learning rate, and its loss at the end in nats per kept token (inf: non-finite).

    shape_factor   of the learning rate of trained shapes; None where only rates are compared
    """

    rate: float
    loss: float
    shape_factor: float | None = None


def apply_tuning(config: PretrainConfig, inputs: Mapping[str, Path]) -> PretrainConfig:
    """`config` with the peak learning rate, the shapes' factor and the length that an earlier step found.

    `config.tuned` names an entry of the JSON file inputs["tuned"]; "" leaves `config` unchanged.

    Raises   ConfigError when the file is missing; DataError when it has no such entry
    """
    if not config.tuned:
        return config
    if "tuned" not in inputs:
        raise ConfigError(
            f"tuned = {config.tuned!r}, and no earlier step wrote the tuned values",
            fix="Leave tuned out; `stamm compare` sets it",
        )
    path = inputs["tuned"]
    try:
        entry = read_json(path)["runs"][config.tuned]
        peak = float(entry.get("peak", config.schedule.peak))
        sequences = entry.get("sequences", config.sequences)
        optimizer = config.optimizer
        if _FACTOR in entry:
            optimizer = replace(optimizer, shape_lr_factor=float(entry[_FACTOR]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{path} has no valid entry for the run {config.tuned!r}",
            fix="Delete its folder and run the same command again",
        ) from None
    return replace(
        config,
        tuned="",
        sequences=sequences,
        schedule=replace(config.schedule, peak=peak),
        optimizer=optimizer,
    )


def refine(config: ChoiceConfig, workspace: Workspace) -> None:
    """Write the rates of two more short runs of the arm, at the best factor, to refined.json."""
    trials = _at_best_factor(_trials(config, workspace))
    rates, factor = next_rates(trials), _factor_entry(trials[0].shape_factor)
    length = _lengths(config, workspace).get(SHORT, {})
    runs = {str(number): {"peak": rate, **factor, **length} for number, rate in enumerate(rates)}
    write_json(workspace.folder / REFINED, {"schema": SCHEMA, "arm": config.arm, "runs": runs})


def choose(config: ChoiceConfig, workspace: Workspace) -> None:
    """Write the rate and factor of the lowest score, or a lower rate within the margin, to chosen.json.

    Edge     where every short run ends with a non-finite loss, the lowest rate is chosen: what it
             gives is the arm's result, and the other arms continue
    """
    trials = sorted(_trials(config, workspace), key=lambda trial: trial.rate)
    rate, edge, factor = config.rate, False, None
    factors = {trial.shape_factor for trial in trials if trial.shape_factor is not None}
    if trials:
        compared = _at_best_factor(trials)
        best = _best(compared)
        edge = len(compared) > 1 and best in (0, len(compared) - 1)
        limit = compared[best].loss + config.margin
        rate = next(trial.rate for trial in compared if trial.loss <= limit)
        factor = compared[0].shape_factor
    lengths = _lengths(config, workspace).get(FINAL, {})
    final = {"peak": rate, **_factor_entry(factor), **lengths}
    plain = {
        "arm": config.arm,
        "rate": rate,
        "shape_factor": factor,
        "at_edge": edge,
        "factor_at_edge": bool(factors) and factor in (min(factors), max(factors)),
        "trials": [
            {
                "rate": t.rate,
                "shape_factor": t.shape_factor,
                "loss_nats": t.loss if math.isfinite(t.loss) else None,
            }
            for t in trials
        ],
        "runs": {FINAL: final},
    }
    write_record(workspace.folder / CHOSEN, ChosenRate, plain)


def next_rates(trials: list[ShortRun]) -> tuple[float, float]:
    """The two rates of the next short runs, around the best one so far.

    Beside the best of r_0 < .. < r_n, r_i: sqrt(r_(i-1) r_i) and sqrt(r_i r_(i+1)). At the lower
    edge r_0 / q and r_0 / q^2 with q = r_1 / r_0; at the upper edge likewise upwards.

    Edge     of equal scores the lower rate is the best; where all are non-finite, the next rates
             are lower
    """
    ordered = sorted(trials, key=lambda trial: trial.rate)
    rates = [trial.rate for trial in ordered]
    best = _best(ordered)
    if best == 0:
        ratio = rates[1] / rates[0]
        rates_to_try = (rates[0] / ratio, rates[0] / ratio**2)
    elif best == len(rates) - 1:
        ratio = rates[-1] / rates[-2]
        rates_to_try = (rates[-1] * ratio, rates[-1] * ratio**2)
    else:
        rates_to_try = (
            math.sqrt(rates[best - 1] * rates[best]),
            math.sqrt(rates[best] * rates[best + 1]),
        )
    return float(f"{rates_to_try[0]:.4g}"), float(f"{rates_to_try[1]:.4g}")


def tail_loss(folder: Path, tail: float) -> float:
    """Mean training loss over the last `tail` of a run's steps, in nats per kept token.

    Every short run of a comparison trains on the same text in these steps, and none of it is held
    out: the held-out text that the arms are compared on has no influence on the choice.

    Edge     infinite when one of them is non-finite. The update of such a step is skipped and it
             has no line in metrics.jsonl: steps are counted by summary.json, not by lines
    """
    steps = int(read_json(folder / "summary.json")["steps"])
    first = steps - max(round(tail * steps), 1) + 1
    last = [line for line in read_metrics(folder / "metrics.jsonl") if line["step"] >= first]
    tokens = sum(line["train/kept_tokens"] for line in last)
    loss = math.fsum(line["train/loss_nats"] * line["train/kept_tokens"] for line in last)
    whole = len(last) == steps - first + 1 and tokens > 0
    return loss / tokens if whole and math.isfinite(loss) else math.inf


def _best(trials: list[ShortRun]) -> int:
    return min(range(len(trials)), key=lambda i: trials[i].loss)


def _at_best_factor(trials: list[ShortRun]) -> list[ShortRun]:
    """The short runs with the shapes' factor of the best one, in their order."""
    factor = trials[_best(trials)].shape_factor
    return [trial for trial in trials if trial.shape_factor == factor]


def _factor_entry(factor: float | None) -> dict[str, float]:
    return {} if factor is None else {_FACTOR: factor}


def _trials(config: ChoiceConfig, workspace: Workspace) -> list[ShortRun]:
    folders = [workspace.inputs[f"trial.{number}"] for number in range(config.trials)]
    return [_short_run(folder, config) for folder in folders]


def _short_run(folder: Path, config: ChoiceConfig) -> ShortRun:
    trained = read_json(folder / "config.json")["config"]
    return ShortRun(
        rate=float(trained["schedule"]["peak"]),
        loss=tail_loss(folder, config.tail),
        shape_factor=float(trained["optimizer"][_FACTOR]) if config.shaped else None,
    )


def _lengths(config: ChoiceConfig, workspace: Workspace) -> dict[str, Any]:
    """{"final": {"sequences": ..}, "short": ..} of the arm; {} where lengths were not measured."""
    if "step_timing" not in workspace.inputs:
        return {}
    runs = read_json(workspace.inputs["step_timing"])["runs"]
    return {kind: runs[f"{config.arm}.{kind}"] for kind in (FINAL, SHORT)}
