"""The learning rate of each arm of a comparison: which are tried, and which one is taken.

Short runs at the rates of a grid come first. Each refinement adds two: beyond the grid when the
best lies at its edge, on both sides of the best when it lies inside. So every arm gets the same
number of runs, wherever its best rate turns out to be. No torch here.

Reads    trial.0, trial.1, .. (folders of short runs); pace, where lengths were measured
Leaves   refined.json (the rates of two more runs), or chosen.json (the rate of the runs that count)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stamm.base.config import validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_json
from stamm.base.schema import write_record
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from stamm.runs.schemas.training import ChosenRate

SCHEMA = 1
REFINED, CHOSEN = "refined.json", "chosen.json"
FINAL, SHORT = "final", "short"  # entries of the files that say how a run is to be


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """What is made of an arm's short runs.

    arm      its name; its lengths are found under it in pace, where that is read
    trials   short runs that are there
    tail     share of a short run, from its end, whose training loss is its score
    """

    arm: str
    trials: int
    tail: float = 0.1

    def __post_init__(self) -> None:
        validate(
            self,
            ("trials", self.trials >= 2, "must be at least 2"),
            ("tail", 0 < self.tail <= 1, "must lie in (0, 1]"),
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A short run. `loss` in nats per kept token at its end; infinite where it is no number."""

    rate: float
    loss: float


def told(config: PretrainConfig, inputs: Mapping[str, Path]) -> PretrainConfig:
    """The run that `config` is once an earlier step has said its peak, its length, or both.

    `config.tuned` names an entry of the JSON file inputs["tuned"]; "" leaves `config` as it is.

    Raises   ConfigError when there is no such file; DataError when it has no such entry
    """
    if not config.tuned:
        return config
    if "tuned" not in inputs:
        raise ConfigError(
            f"tuned = {config.tuned!r}, and no step before this run says how it is to be",
            fix="Leave tuned out; `stamm compare` sets it",
        )
    path = inputs["tuned"]
    try:
        entry = read_json(path)["runs"][config.tuned]
        peak = float(entry.get("peak", config.schedule.peak))
        sequences = entry.get("sequences", config.sequences)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{path} does not say how the run {config.tuned!r} is to be",
            fix="Delete its folder and run the same command again",
        ) from None
    return replace(
        config, tuned="", sequences=sequences, schedule=replace(config.schedule, peak=peak)
    )


def refine(config: ChoiceConfig, workspace: Workspace) -> None:
    """Write the rates of two more short runs of the arm."""
    rates = next_rates(_trials(config, workspace))
    length = _lengths(config, workspace).get(SHORT, {})
    runs = {str(number): {"peak": rate, **length} for number, rate in enumerate(rates)}
    write_json(workspace.folder / REFINED, {"schema": SCHEMA, "arm": config.arm, "runs": runs})


def choose(config: ChoiceConfig, workspace: Workspace) -> None:
    """Write the rate with the lowest score, and all that were tried.

    Edge     where no short run ends in a number the lowest rate is taken: what comes of it is the
             arm's result, and no reason to stop the others
    """
    trials = sorted(_trials(config, workspace), key=lambda trial: trial.rate)
    best = _best(trials)
    final = {"peak": trials[best].rate, **_lengths(config, workspace).get(FINAL, {})}
    plain = {
        "arm": config.arm,
        "rate": trials[best].rate,
        "at_edge": best in (0, len(trials) - 1),
        "trials": [
            {"rate": t.rate, "loss_nats": t.loss if math.isfinite(t.loss) else None} for t in trials
        ],
        "runs": {FINAL: final},
    }
    write_record(workspace.folder / CHOSEN, ChosenRate, plain)


def next_rates(trials: list[Trial]) -> tuple[float, float]:
    """Two rates that say most about where the best one lies.

    Beside the best of r_0 < .. < r_n, r_i: sqrt(r_(i-1) r_i) and sqrt(r_i r_(i+1)). At the lower
    edge r_0 / q and r_0 / q^2 with q = r_1 / r_0; at the upper edge likewise upwards.

    Edge     of equal scores the lower rate counts as the best; where none is a number, the next
             rates are lower
    """
    ordered = sorted(trials, key=lambda trial: trial.rate)
    rates = [trial.rate for trial in ordered]
    best = _best(ordered)
    if best == 0:
        ratio = rates[1] / rates[0]
        found = (rates[0] / ratio, rates[0] / ratio**2)
    elif best == len(rates) - 1:
        ratio = rates[-1] / rates[-2]
        found = (rates[-1] * ratio, rates[-1] * ratio**2)
    else:
        found = (
            math.sqrt(rates[best - 1] * rates[best]),
            math.sqrt(rates[best] * rates[best + 1]),
        )
    return float(f"{found[0]:.4g}"), float(f"{found[1]:.4g}")


def tail_loss(folder: Path, tail: float) -> float:
    """Mean training loss over the last `tail` of a run's steps, in nats per kept token.

    Every short run of a comparison has seen the same text at these steps, and none of it is held
    out: what the arms are judged by has no part in the choice.

    Edge     infinite when one of them is no number. The update of such a step is left out and it
             has no line: steps are counted by what the run was to do, not by its lines
    """
    steps = int(read_json(folder / "summary.json")["steps"])
    first = steps - max(round(tail * steps), 1) + 1
    last = [line for line in read_metrics(folder / "metrics.jsonl") if line["step"] >= first]
    tokens = sum(line["train/kept_tokens"] for line in last)
    loss = math.fsum(line["train/loss_nats"] * line["train/kept_tokens"] for line in last)
    whole = len(last) == steps - first + 1 and tokens > 0
    return loss / tokens if whole and math.isfinite(loss) else math.inf


def _best(trials: list[Trial]) -> int:
    return min(range(len(trials)), key=lambda i: trials[i].loss)


def _trials(config: ChoiceConfig, workspace: Workspace) -> list[Trial]:
    folders = [workspace.inputs[f"trial.{number}"] for number in range(config.trials)]
    return [Trial(rate=_rate(one), loss=tail_loss(one, config.tail)) for one in folders]


def _rate(folder: Path) -> float:
    return float(read_json(folder / "config.json")["config"]["schedule"]["peak"])


def _lengths(config: ChoiceConfig, workspace: Workspace) -> dict[str, Any]:
    """{"final": {"sequences": ..}, "short": ..} of the arm; {} where lengths were not measured."""
    if "pace" not in workspace.inputs:
        return {}
    runs = read_json(workspace.inputs["pace"])["runs"]
    return {kind: runs[f"{config.arm}.{kind}"] for kind in (FINAL, SHORT)}
