"""Throughput model: training time from finished runs on the same kind of device. No torch here.

The time of a step is that of matrix products plus that of memory traffic besides them
(`engine.estimate.traffic`). One finished run gives the rate of both together, with the ratio of the
two assumed for the device; several runs of different sizes give both. The additional time of a first
step, most of it compilation, is counted once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.units import flops_text
from stamm.engine.estimate import DEVICES, Devices, traffic
from stamm.models.flops import training_flops
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import Throughput, setting_of
from stamm.runs.metrics import read_metrics

# FLOP of products in the time of one byte of traffic, which one run cannot separate. CPU: seven runs of models
# of 2 to 30 million parameters on two threads of an idle Xeon (Emerald Rapids), each predicted from each other:
# all within 11 %, half within 3.5 % (2026-11-22, bench/plan_time.py). An older, busy Xeon gave 20, with which
# these would be off by up to 33 %. GPU: a fraction of the data sheet's ratio, as products reach less of their
# peak than memory does.
CPU_BALANCE = 50.0
GPU_BALANCE = 0.7
# Of the speed of a product in the caches of a core, which products in training reach. Models of 1.3 and 16.9
# million parameters on two idle threads of that Xeon trained 24,400 and 2,400 tokens/s: 1.1 and 0.9 of it.
CPU_SHARE = 0.9
CPU_BEGIN_SECONDS = (
    2.0,
    8.0,
)  # of a run without compilation and with it; with a new cache 20 to 30


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A finished run: work per second of one of its processes, and the additional time of its first step."""

    config: PretrainConfig
    flops_per_s: float
    bytes_per_s: float
    begin_seconds: float


def measured_throughput(
    runs: Sequence[Path], name: str, config: PretrainConfig, devices: Devices | None
) -> Throughput | None:
    """Throughput of finished runs, to plan `config`; None where `runs` is empty.

    name     of the planned arm: of a run with arms, the arm of this name or the only one is read
    Raises   DataError for a path that is not a finished run; ConfigError for a run with another
             device, precision or compilation
    """
    if not runs:
        return None
    arms = [_arm(run, name) for run in runs]
    measured = [_measured(arm, config, devices) for arm in arms]
    flops, moved = _rates([(m.flops_per_s, m.bytes_per_s) for m in measured], _balance(devices))
    achieved = statistics.fmean(m.flops_per_s for m in measured)
    named = " and ".join(map(str, arms))
    return Throughput(
        flops_per_s=flops,
        bytes_per_s=moved,
        begin_seconds=statistics.fmean(m.begin_seconds for m in measured),
        source=f"as {named} did: {flops_text(achieved)}/s a process",
    )


def cpu_throughput(core_flops: float, threads: int, *, compiled: bool) -> Throughput:
    """Expected throughput of training on an otherwise idle CPU, from the speed of its products.

    core_flops   FLOP/s of float32 products on one core (`engine.peak_flops.core_flops`)
    """
    flops = CPU_SHARE * core_flops * threads
    return Throughput(
        flops_per_s=flops,
        bytes_per_s=flops / CPU_BALANCE,
        begin_seconds=CPU_BEGIN_SECONDS[compiled],
        source=f"expected on an idle machine: products reach {flops_text(core_flops)}/s a core",
    )


def _rates(measured: Sequence[tuple[float, float]], balance: float) -> tuple[float, float]:
    """FLOP/s of products and bytes/s of traffic, such that each run's work of a second takes a second.

    measured   FLOP and bytes per second of each run
    balance    FLOP in the time of a byte, where the runs do not separate the two
    """
    ff = sum(f * f for f, _ in measured)
    fb = sum(f * b for f, b in measured)
    bb = sum(b * b for _, b in measured)
    f1, b1 = (sum(column) for column in zip(*measured, strict=True))
    apart = ff * bb - fb * fb
    if apart > 1e-3 * ff * bb:
        per_flop, per_byte = (f1 * bb - b1 * fb) / apart, (b1 * ff - f1 * fb) / apart
        if per_flop > 0 and per_byte > 0:
            return 1 / per_flop, 1 / per_byte
    together = [f + balance * b for f, b in measured]
    flops = sum(t * t for t in together) / sum(together)
    return flops, flops / balance


def _balance(devices: Devices | None) -> float:
    if devices is None:
        return CPU_BALANCE
    kind = DEVICES[devices.name]
    return GPU_BALANCE * kind.flops / kind.bytes_per_s


def _measured(arm: Path, planned: PretrainConfig, devices: Devices | None) -> _Measured:
    timing, stored = read_json(arm / "log" / "timing.json"), read_json(arm / "config.json")
    lines = read_metrics(arm / "log" / "speed.jsonl")
    try:
        config = from_plain(PretrainConfig, stored["config"], str(arm / "config.json"))
        tokens_per_s = float(timing["tokens_per_s_median"])
        processes = math.prod(int(n) for n in timing["processes"].values())
        speeds = [(line["speed/seconds"], line["speed/tokens_per_s"]) for line in lines]
        first = speeds[0][0] * (1 - speeds[0][1] / tokens_per_s)
        tokens = statistics.median(seconds * speed for seconds, speed in speeds)  # of a step
        device, names = str(timing["device"]), list(timing["devices"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
        tokens_per_s, processes, tokens = math.nan, 1, math.nan
    if not 0 < tokens_per_s < math.inf or processes < 1 or not tokens > 0:
        raise DataError(
            f"{arm} has no recorded throughput", fix="Name a finished run of this version"
        )
    _check_alike(arm, device, names, config, planned, devices)
    per_token, per_update = traffic(
        config.model, config.optimizer, config.context, config.engine.precision,
        setting_of(config, devices)[0],
    )  # fmt: skip
    share = tokens_per_s / processes
    return _Measured(
        config=config,
        flops_per_s=share * training_flops(config.model, config.context) / config.context,
        bytes_per_s=share * (per_token + per_update / tokens),
        begin_seconds=max(first, 0.0),
    )


def _check_alike(
    arm: Path,
    device: str,
    names: list[str],
    config: PretrainConfig,
    planned: PretrainConfig,
    devices: Devices | None,
) -> None:
    """Check that `arm` was trained with the device, precision and compilation of `planned`."""
    if device.startswith("cuda") != (devices is not None) or not _is_of(names, devices):
        there = f"{devices.count}x{devices.name}" if devices else "this machine's CPU"
        raise ConfigError(
            f"{arm} was trained on {', '.join(names) or device}, and this is planned for {there}",
            where="--like",
            fix="Name a run on the same kind of device"
            if devices
            else "Add --gpus, such as 8xH200",
        )
    keys = ("precision", "compile", "activation_checkpointing", *(() if devices else ("threads",)))
    for key in keys:
        was, planned_for = getattr(config.engine, key), getattr(planned.engine, key)
        if was != planned_for:
            raise ConfigError(
                f"{arm} was trained with engine.{key} = {was!r}, and this is planned with"
                f" {planned_for!r}",
                where="--like",
                fix=f"Name another run, or set engine.{key}={was}",
            )


def _is_of(names: list[str], devices: Devices | None) -> bool:
    """Whether GPUs with these vendor names are `devices`; unknown names are accepted."""
    for name in names if devices else ():
        known = [key for key in DEVICES if key in name.replace(" ", "")]
        if known and devices and max(known, key=len) != devices.name:
            return False
    return True


def _arm(run: Path, name: str) -> Path:
    there = sorted(path.parents[1] for path in run.glob("arms/*/log/timing.json"))
    named = [arm for arm in there if arm.name == name] or there
    if (run / "log" / "timing.json").is_file():
        return run
    if len(named) != 1:
        listed = ", ".join(map(str, there)) or "none"
        raise DataError(
            f"{run} is not one finished run",
            where="--like",
            fix=f"Name an arm; there are: {listed}",
        )
    return named[0]
