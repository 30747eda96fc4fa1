"""Step timing: seconds per step of each arm on this machine, and the steps that each has in equal time.

Each arm is trained for a few steps, in turns, by the code that trains it later; the median of its
later steps counts. The measurement depends on the machine and its load: it is recorded once, and
everything after it uses the record.

Reads    pack and tokenizer, as a pretraining run does
Writes   step_timing.json (seconds per step and lengths of every arm); rounds/ (the short runs)
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stamm.base.console import NoProgress
from stamm.base.errors import RunError
from stamm.base.files import write_json
from stamm.engine.cpu_allocator import caching_allocator
from stamm.engine.distributed import (
    DistributedContext,
    destroy_process_group,
    init_distributed,
    report_lost_peers,
    select_device,
)
from stamm.models.determinism import set_determinism
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.job import open_stream
from stamm.pretrain.kernel_choice import (
    Choices,
    choices_of_run,
    chosen_kernels,
    prepare_kernels,
)
from stamm.pretrain.lr_finder import FINAL, SHORT
from stamm.pretrain.step_timing_config import STEP_TIMING, StepTimingConfig
from stamm.pretrain.train import load_objective, train_decoder
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

SCHEMA = 1


@report_lost_peers()
def run(config: StepTimingConfig, workspace: Workspace) -> None:
    """Measure every arm in turns and write the length of each run to step_timing.json."""
    engine = config.arms[0].pretrain.engine
    set_determinism(engine.threads)
    device = select_device(engine.device)
    world = init_distributed(engine.parallel, device, collectives=engine.precision != "float32")
    workspace.progress.begin("measure steps", config.rounds * len(config.arms), "runs")
    seconds: dict[str, list[float]] = {arm.name: [] for arm in config.arms}
    choices = {arm.name: _choices(arm.pretrain, world) for arm in config.arms}
    for turn in range(config.rounds):
        for number, arm in enumerate(config.arms):
            with caching_allocator() if device.type == "cpu" else contextlib.nullcontext():
                seconds[arm.name] += _timed(
                    config, arm.pretrain, choices[arm.name], workspace, world
                )
            workspace.progress.advance(turn * len(config.arms) + number + 1, arm.name)
    if world.is_main_process:
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        plain = {
            "schema": SCHEMA,
            "device": str(world.device),
            "arms": {
                name: {"seconds_per_step": medians[name], "measured_seconds": seconds[name]}
                for name in seconds
            },
            "runs": lengths(config, medians),
        }
        write_json(workspace.folder / STEP_TIMING, plain)
        workspace.progress.end()
    world.broadcast_object(None)
    if world.size == 1:
        destroy_process_group()


def lengths(config: StepTimingConfig, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Lengths that take the same time: {"swiglu.final": {"sequences": ..}, "swiglu.short": .., ..}.

    The baseline has the length of its configuration; every other arm has as many whole steps as end
    in that time. Short runs are the fraction `short` of it.
    """
    base = next(arm.pretrain for arm in config.arms if arm.name == config.baseline)
    lengths_of_arms: dict[str, Any] = {}
    for arm in config.arms:
        batch = arm.pretrain.batch[0].size
        steps = base.total_sequences() / base.batch[0].size
        if arm.name != config.baseline:
            steps *= seconds[config.baseline] / seconds[arm.name]
        for kind, share in ((FINAL, 1.0), (SHORT, config.short)):
            # 1e-9: 3 * 0.1 / 0.1 is not below 3.
            fitting = max(int(steps * share + 1e-9), 1)
            lengths_of_arms[f"{arm.name}.{kind}"] = {"sequences": fitting * batch}
    return lengths_of_arms


def _choices(pretrain: PretrainConfig, world: DistributedContext) -> Choices:
    """The kernels of a run with this configuration, which are measured and recorded once."""
    if world.device.type != "cpu":
        return {}
    choices: Choices = {}
    if world.is_main_process:
        choices = choices_of_run(pretrain, pretrain.total_sequences(), world)
    choices = world.broadcast_object(choices)
    prepare_kernels(pretrain, choices)
    return choices


def _timed(
    config: StepTimingConfig,
    pretrain: PretrainConfig,
    choices: Choices,
    workspace: Workspace,
    world: DistributedContext,
) -> list[float]:
    """Seconds of each counted step of one short run; empty except on the main process."""
    folder = workspace.folder / "rounds"
    if world.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
    world.broadcast_object(None)
    steps = config.warmup_steps + config.steps
    short = replace(
        pretrain,
        sequences=steps * pretrain.batch[0].size,
        evaluate=None,
        engine=replace(pretrain.engine, checkpoint_every=steps + 1),
    )
    stream = open_stream(short, workspace.inputs)
    windows = SequenceSampler(stream, short.context, short.seed, short.goldfish, short.masks)
    timing_workspace = replace(workspace, folder=folder, progress=NoProgress())
    with chosen_kernels(short, choices) as chosen:
        train_decoder(chosen, timing_workspace, world, windows, load_objective(short.objective))
    if not world.is_main_process:
        return []
    lines = read_metrics(folder / "log" / "speed.jsonl")[config.warmup_steps :]
    if not lines:
        raise RunError(f"{folder} has no measured step", fix="Run the same command again")
    return [line["speed/seconds"] for line in lines]
