"""Plan of a pretraining run: sizes, FLOPs, memory, time, learning rate, disk. No torch here."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any, get_args

from stamm.base.processor import memory_bytes
from stamm.engine.attention_support import kernel_of
from stamm.engine.config import EIGHT_BITS, Precision
from stamm.engine.estimate import (
    ASSUMED_SAVE_BYTES_PER_S,
    ASSUMED_UTILISATION,
    DEVICES,
    Devices,
    Memory,
    Setting,
    checkpoint_bytes,
    estimate_memory,
    optimizer_groups,
    traffic,
)
from stamm.engine.pieces import pieces_of
from stamm.models.config import DecoderConfig, MemoryPolicy
from stamm.models.flops import (
    count_parameters,
    ffn_cost,
    forward_flops,
    guide_flops,
    guide_parameters,
    training_flops,
)
from stamm.models.self_guide import expected_guide_uses, guided_steps
from stamm.optim.schedules import step_rate
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan_warnings import PlanContext, notes, warnings

CURVE_POINTS = 60
_SAMPLED = 2000


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput of a finished run, to plan another one.

    flops_per_s     model FLOP/s of one process
    bytes_per_s     memory traffic besides products (`engine.estimate.traffic`); infinite: ignored
    begin_seconds   additional time of the first step
    source          where it comes from, as text
    """

    flops_per_s: float
    source: str
    bytes_per_s: float = math.inf
    begin_seconds: float = 0.0


def plan(
    config: PretrainConfig,
    devices: Devices | None,
    corpus_sequences: int | None = None,
    pace: Throughput | None = None,
) -> dict[str, Any]:
    """Everything `stamm plan` prints, as JSON values. Sizes in bytes, work in FLOP, time in seconds.

    devices            where it runs, one process on each; None: this machine's CPU
    corpus_sequences   sequences of the packed corpus, where it is known
    pace               throughput of a run on the same device; None: on a GPU an assumed model FLOPs
                       utilisation (MFU), on a CPU no time is given
    """
    total = config.total_sequences(corpus_sequences)
    batches = config.batches(total)
    parameters = count_parameters(config.model)
    setting, in_flight = setting_of(config, devices)
    memory = estimate_memory(
        config.model,
        config.optimizer,
        in_flight,
        config.context,
        config.engine.precision,
        setting,
    )
    flops = total * training_flops(config.model, config.context) + _guides(config, total)
    forward = forward_flops(config.model, config.context)
    moved = _moved(config, total, batches.num_steps, setting)
    time = _time(flops, moved, devices, setting, pace, config.engine.precision)
    disk = _disk(config, batches.num_steps, total, corpus_sequences or total)
    facts: dict[str, Any] = {
        "parameters": {
            **dataclasses.asdict(parameters),
            "total": parameters.total,
            "guides": guide_parameters(config.model),
        },
        "optimizer": [
            {
                "group": group.label,
                "method": group.method,
                "parameters": group.numbers,
                "lr_factor": group.lr_factor,
                "weight_decay": group.weight_decay,
            }
            for group in optimizer_groups(config.model, config.optimizer, config.lora)
        ],
        "sequences": total,
        "passes": None if not corpus_sequences else total / corpus_sequences,
        "context": config.context,
        "tokens": total * config.context,
        "tokens_per_parameter": total * config.context / parameters.total,
        "steps": batches.num_steps,
        "batch": [
            {"from_sequence": s.start, "sequences": s.size, "tokens": s.size * config.context}
            for s in config.batch
        ],
        "processes": {"data": setting.data, "context": setting.context, "tensor": setting.tensor},
        "replicas": setting.replicas,
        "memory": {
            **_memory(memory),
            "precision": config.engine.precision,
            "sequences_in_flight_per_device": in_flight * setting.at_once,
            "device": memory_bytes() if devices is None else devices.memory,
            "device_source": "this machine" if devices is None else DEVICES[devices.name].source,
        },
        "ffn_memory": _ffn_memory(config.model, 4 if config.engine.precision == "float32" else 2),
        "flops": {
            "total": flops,
            "per_token": flops // (total * config.context),
            "forward_per_sequence": dataclasses.asdict(forward),
        },
        "time": time,
        "disk": disk,
        "checkpoints": _checkpoints(config, batches.num_steps, disk["checkpoint"], time),
        "forget": _forgetting(config, batches.num_steps, total, disk["checkpoint"]),
        "learning_rate": _rates(config, total),
        "batch_size": _sizes(config, total),
    }
    planned = PlanContext(config=config, devices=devices, setting=setting, facts=facts)
    return {**facts, "warnings": warnings(planned), "notes": notes(planned)}


def setting_of(config: PretrainConfig, devices: Devices | None) -> tuple[Setting, int]:
    """Division of a step over processes, and the sequences of a process in a micro-batch, or a piece of one.

    Edge   where processes do not fill the grid, or a step does not divide, the next larger number:
           `warnings` reports it
    """
    engine, parallel = config.engine, config.engine.parallel
    block = parallel.context * parallel.tensor
    count = block * (parallel.data or parallel.replicas) if devices is None else devices.count
    data = max(count // block, 1) if parallel.data is None else parallel.data
    largest = max(stage.size for stage in config.batch)
    mine = -(-largest // data)
    parts = config.parts(mine)
    gpu = devices is not None and engine.device != "cpu"
    micro = config.largest_micro_batch(mine)
    # As in `pretrain.next_token`: processes that share gradients compute one after the other.
    alone = devices is None and data * block == 1 and engine.precision == "float32"
    pieces = pieces_of(engine, micro, config.context) if alone else 1
    steps = config.batches(config.sequences or largest).num_steps
    setting = Setting(
        data=data,
        context=parallel.context,
        tensor=parallel.tensor,
        replicas=parallel.replicas,
        gpu=gpu,
        micro_batches=parts * pieces,
        at_once=min(pieces, engine.threads),
        compiled=engine.compile == "layers",
        recompute=engine.activation_checkpointing == "layers",
        dense=kernel_of(engine, config.model, gpu=gpu) == "dense",
        background=engine.async_checkpointing,
        guided=guided_steps(config.model.structured.guide, max(steps, 1)) > 0,
        lora=config.lora,
    )
    return setting, -(-micro // pieces)


def _memory(memory: Memory) -> dict[str, Any]:
    parts = {f.name: getattr(memory, f.name) for f in dataclasses.fields(memory)}
    del parts["timeline"]
    return {
        **parts,
        "per_device": memory.peak,
        "fullest": memory.fullest.name,
        "timeline": [{**dataclasses.asdict(m), "total": m.total} for m in memory.timeline],
    }


def _guides(config: PretrainConfig, total: int) -> int:
    """FLOPs of the dense guides over the run, on average over seeds."""
    batches = config.batches(total)
    guided = guided_steps(config.model.structured.guide, batches.num_steps)
    if not guided:
        return 0
    count = min(guided, _SAMPLED)
    steps = [1 + (2 * i + 1) * guided // (2 * count) for i in range(count)]
    uses = sum(
        expected_guide_uses(config.model, step, batches.num_steps) * batches.step(step - 1).size
        for step in steps
    )
    return round(uses * guided / count) * guide_flops(config.model, config.context)


def _ffn_memory(model: DecoderConfig, number_bytes: int) -> list[dict[str, Any]]:
    """Saved bytes and products per token of one feed-forward block, under each memory policy."""
    used = model.ffn.memory
    policies = [used if isinstance(used, kind) else kind() for kind in get_args(MemoryPolicy)]
    return [{**_policy(model, p, number_bytes), "in_use": p == used} for p in policies]


def _policy(model: DecoderConfig, policy: MemoryPolicy, number_bytes: int) -> dict[str, Any]:
    facts = {"policy": type(policy).__name__, **dataclasses.asdict(policy)}
    ffn = dataclasses.replace(model.ffn, memory=policy)
    return {
        **facts,
        **dataclasses.asdict(ffn_cost(model.d_model, ffn, number_bytes)),
    }


def _disk(config: PretrainConfig, steps: int, total: int, corpus_sequences: int) -> dict[str, int]:
    """Sizes in bytes. A new checkpoint is complete before the oldest is deleted: one more than is kept.

    corpus_sequences   of the packed corpus, which is stored once for any number of epochs
    """
    checkpoint = checkpoint_bytes(config.model, config.optimizer, lora=config.lora)
    stay, others = _saved(config, steps, total)
    keep = config.engine.keep_checkpoints
    token_bytes = 2 if config.model.vocab_size <= 2**16 else 4
    return {
        "checkpoint": checkpoint,
        "checkpoints_kept": checkpoint * (stay + min(keep, others)),
        "checkpoints_at_most": checkpoint * (stay + min(keep + 1, others)),
        "tokens": corpus_sequences * config.context * token_bytes,
    }


def _saved(config: PretrainConfig, steps: int, total: int) -> tuple[int, int]:
    """Number of the run's checkpoints that are kept for good, and of all others."""
    every, keep_every = config.engine.checkpoint_every, config.engine.keep_every
    before = _flat_steps(config, total, steps)
    stay = both = 0
    if keep_every is not None:
        stay, both = steps // keep_every, steps // math.lcm(every, keep_every)
    kept = keep_every is not None and before % keep_every == 0
    if 0 < before < steps and not kept:  # the one from before the learning rate falls
        stay, both = stay + 1, both + (before % every == 0)
    last = steps % every > 0 and not (keep_every is not None and steps % keep_every == 0)
    return stay, steps // every - both + last


def _flat_steps(config: PretrainConfig, total: int, steps: int) -> int:
    """Number of steps that end before the learning rate decays."""
    return min(config.batches(config.schedule.decay_start(total)).num_steps, steps)


def _moved(config: PretrainConfig, total: int, steps: int, setting: Setting) -> int:
    """Memory traffic of all processes in bytes, besides products."""
    per_token, per_update = traffic(
        config.model, config.optimizer, config.context, config.engine.precision, setting
    )
    return total * config.context * per_token + steps * per_update


def _time(
    flops: int,
    moved: int,
    devices: Devices | None,
    setting: Setting,
    pace: Throughput | None,
    precision: Precision,
) -> dict[str, Any] | None:
    if pace is None and devices is None:
        return None
    processes = setting.data * setting.context * setting.tensor
    where = (
        f"{devices.count}x{devices.name}"
        if devices
        else "this CPU"
        if processes == 1
        else f"{processes} processes on this CPU"
    )
    if pace is not None:
        steady = (flops / pace.flops_per_s + moved / pace.bytes_per_s) / processes
        used = flops / (steady * devices.peak_flops) if devices else None
        seconds = steady + pace.begin_seconds
        return {"seconds": seconds, "devices": where, "source": pace.source, "utilisation": used}
    assert devices is not None
    eight = ", as in bfloat16: unknown for 8 bits" if precision in EIGHT_BITS else ""
    return {
        "seconds": flops / (devices.peak_flops * ASSUMED_UTILISATION),
        "devices": where,
        "source": f"assumed: MFU of Apertus 8B{eight}",
        "utilisation": ASSUMED_UTILISATION,
    }


def _checkpoints(
    config: PretrainConfig, steps: int, size: int, time: dict[str, Any] | None
) -> dict[str, Any]:
    """Number of checkpoints, and the fraction of time that writing them takes.

    waits_seconds   per checkpoint, during which training waits; 0 where it is asynchronous
    """
    every = config.engine.checkpoint_every
    waits = 0.0 if config.engine.async_checkpointing else size / ASSUMED_SAVE_BYTES_PER_S
    between = time["seconds"] / max(steps, 1) * min(every, steps) if time else None
    return {
        "every_steps": every,
        "count": -(-steps // every),
        "between_seconds": between,
        "waits_seconds": waits,
        "share": waits / (waits + between) if between else None,
    }


def _forgetting(
    config: PretrainConfig, steps: int, total: int, size: int
) -> dict[str, float | int]:
    """Share of the steps that are trained again to forget a document exactly, on average over the step that
    first reads it; and the same with a checkpoint kept of every tenth of the run.

    bytes   of those further checkpoints
    """
    engine = config.engine
    newest = range(engine.checkpoint_every, steps, engine.checkpoint_every)
    kept = {*newest[-engine.keep_checkpoints :], _flat_steps(config, total, steps)}
    kept |= set(range(engine.keep_every, steps, engine.keep_every)) if engine.keep_every else set()
    every = max(-(-steps // 10), 1)
    more = kept | set(range(every, steps, every))
    return {
        "share": _share_again(kept, steps),
        "keep_every": every,
        "share_kept": _share_again(more, steps),
        "bytes": size * len(more - kept),
    }


def _share_again(kept: set[int], steps: int) -> float:
    """Mean share of the steps behind the last of the checkpoints `kept` before a step."""
    places = [0, *sorted(step for step in kept if 0 < step < steps), steps]
    return sum((b - a) * (steps - a) for a, b in itertools.pairwise(places)) / steps**2


def _points(total: int) -> list[int]:
    return sorted({round(total * i / CURVE_POINTS) for i in range(1, CURVE_POINTS + 1)})


def _rates(config: PretrainConfig, total: int) -> list[dict[str, float]]:
    """Learning rate of the step that trains on each point."""
    steps = config.batches(total)
    rates = []
    for point in _points(total):
        ended = config.batches(max(point - 1, 0)).num_steps  # steps that end before the point
        span = steps.step(max(min(ended, steps.num_steps - 1), 0))
        rate = step_rate(config.schedule, span.first, span.size, total)
        rates.append({"sequence": point, "rate": rate})
    return rates


def _sizes(config: PretrainConfig, total: int) -> list[dict[str, int]]:
    """Sequences of the step that trains on each point."""
    starts = [(stage.start, stage.size) for stage in config.batch]
    return [
        {"sequence": s, "sequences": [size for start, size in starts if start < s][-1]}
        for s in _points(total)
        if s
    ]
