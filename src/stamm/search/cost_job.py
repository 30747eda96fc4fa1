"""Time the kernels of the candidates that passed the screen, beside the baseline's.

Reads    candidate.NAME (folders with screen.json)
Leaves   costs.json
"""

from __future__ import annotations

import torch

from stamm.activations.benchmark import BenchmarkArm, measure
from stamm.activations.module.activation import module_of
from stamm.activations.spec import Spec
from stamm.base.schema import read_record, write_record
from stamm.runs.job import Workspace
from stamm.runs.manifest import environment
from stamm.search.config import CostConfig
from stamm.search.records import COSTS, SCREENED, CandidateFile, CostsFile


def run(config: CostConfig, workspace: Workspace) -> None:
    """Write the median time of forward and backward pass of each kernel, all timed in turns."""
    progress, passing = workspace.progress, []
    for spec in config.candidates:
        file = workspace.inputs[f"candidate.{spec.name}"] / SCREENED
        if not read_record(CandidateFile, file).reasons:
            passing.append(spec)
    progress.begin("time the kernels", 1, f"of {len(passing) + 1}")
    torch.set_num_threads(config.threads)
    times_by_name = measure(
        [_arm(spec) for spec in (config.baseline, *passing)],
        inputs=1,
        shape=(config.rows, config.columns),
        dtype=torch.float32,
        device=torch.device("cpu"),
        rounds=config.rounds,
    ).steps["forward_backward"]
    seconds = {name: times.p50 for name, times in times_by_name.items()}
    limit = config.slower * seconds[config.baseline.name]
    costs = CostsFile(
        baseline=config.baseline.name,
        processor=str(environment().get("cpu", "")),
        seconds=seconds,
        slower=config.slower,
        passed=tuple(spec.name for spec in passing if seconds[spec.name] <= limit),
    )
    write_record(workspace.folder / COSTS, CostsFile, vars(costs))
    progress.end(f"{len(costs.passed)} of {len(config.candidates)} candidates are left")


def _arm(spec: Spec) -> BenchmarkArm:
    module = module_of(spec, dtype=torch.float32)
    return BenchmarkArm(
        name=spec.name, call=module, parameters=tuple(module.parameters()), same=False
    )
