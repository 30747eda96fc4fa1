"""A planned look at a comparison: decides whether it stops.

Reads    run (the run folder)
Leaves   look.json; with "stop", the steps of later seeds are left out
"""

from __future__ import annotations

from collections.abc import Sequence

from stamm.base.schema import write_record
from stamm.compare.config import LOOK, LookConfig
from stamm.compare.records import LookFile
from stamm.compare.results import read_comparison
from stamm.compare.verdict import ArmLine, judge_comparison
from stamm.runs.job import Workspace


def run(config: LookConfig, workspace: Workspace) -> None:
    """Write the decisions about all arms after `config.seeds` seeds."""
    workspace.progress.begin("look", 1, "file")
    compared = read_comparison(workspace.inputs["run"])
    lines = judge_comparison(compared, seeds=config.seeds).lines
    decisions = decide(lines, compared.baseline, config.difference)
    difference_by_arm = {line.name: line.difference for line in lines}
    plain = {
        "seeds": config.seeds,
        "stop": "open" not in decisions.values(),
        "decisions": decisions,
        "p_values": {
            name: difference.adjusted
            for name, difference in difference_by_arm.items()
            if difference and difference.adjusted is not None
        },
    }
    write_record(workspace.folder / LOOK, LookFile, plain)
    workspace.progress.end(", ".join(f"{name}: {said}" for name, said in decisions.items()))


def decide(lines: Sequence[ArmLine], baseline: str, difference: float | None) -> dict[str, str]:
    """The decision about each arm but the baseline: see `LookFile`."""
    lost = any(line.diverged for line in lines if line.name == baseline)
    return {
        line.name: "diverged" if lost or line.diverged else _decision(line, difference)
        for line in lines
        if line.name != baseline
    }


def _decision(line: ArmLine, difference: float | None) -> str:
    observed = line.difference
    if observed is None or observed.interval.low is None or observed.interval.high is None:
        return "open"
    if observed.shown:
        return "shown"
    within = difference is not None and -difference < observed.interval.low
    return "excluded" if within and observed.interval.high < (difference or 0.0) else "open"
