"""A pretraining run laid out before it starts: sizes, work, time, learning rate, disk. No torch."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from stamm.activations import catalog
from stamm.engine.estimate import (
    ASSUMED_UTILISATION,
    Devices,
    Precision,
    checkpoint_bytes,
    estimate_memory,
)
from stamm.models.config import DecoderConfig, FewBit, MemoryPolicy, few_bit_refusal
from stamm.models.count import count_parameters, ffn_cost, forward_flops, training_flops
from stamm.pretrain.config import PretrainConfig

CURVE_POINTS = 60


def plan(
    config: PretrainConfig, devices: Devices | None, corpus_sequences: int | None = None
) -> dict[str, Any]:
    """Everything `stamm plan` prints, as JSON values. Sizes in bytes, work in FLOP, time in seconds.

    devices            where it is to run; None means this machine's CPU, with no time given
    corpus_sequences   sequences of the packed corpus, where it is known already
    """
    total = config.total_sequences(corpus_sequences)
    batches = config.batches(total)
    parameters = count_parameters(config.model)
    largest = max(stage.size for stage in config.batch)
    in_flight = config.micro_batch or largest
    precision: Precision = "float32" if devices is None else "bfloat16"
    memory = estimate_memory(
        config.model,
        config.optimizer,
        in_flight * (1 if devices is None else devices.count),
        config.context,
        precision,
        devices=1 if devices is None else devices.count,
    )
    flops = total * training_flops(config.model, config.context)
    forward = forward_flops(config.model, config.context)
    return {
        "parameters": {**dataclasses.asdict(parameters), "total": parameters.total},
        "sequences": total,
        "context": config.context,
        "tokens": total * config.context,
        "steps": batches.num_steps,
        "batch": [
            {"from_sequence": s.start, "sequences": s.size, "tokens": s.size * config.context}
            for s in config.batch
        ],
        "memory": {
            **dataclasses.asdict(memory),
            "total": memory.total,
            "per_device": memory.total // (1 if devices is None else devices.count),
            "precision": precision,
            "sequences_in_flight_per_device": in_flight,
        },
        "ffn_memory": _ffn_memory(config.model, 4 if precision == "float32" else 2),
        "flops": {
            "total": flops,
            "per_token": flops // (total * config.context),
            "forward_per_sequence": dataclasses.asdict(forward),
        },
        "time": _time(flops, devices),
        "disk": _disk(config, batches.num_steps, corpus_sequences or total),
        "learning_rate": _curve(config, total),
    }


def _ffn_memory(model: DecoderConfig, number_bytes: int) -> list[dict[str, Any]]:
    """What one feed-forward block keeps and multiplies a token, under each memory policy.

    refused   why a policy cannot serve this activation; its numbers are None then
    """
    used = model.ffn.memory
    policies = [used if isinstance(used, kind) else kind() for kind in get_args(MemoryPolicy)]
    return [{**_policy(model, p, number_bytes), "in_use": p == used} for p in policies]


def _policy(model: DecoderConfig, policy: MemoryPolicy, number_bytes: int) -> dict[str, Any]:
    told = {"policy": type(policy).__name__, **dataclasses.asdict(policy)}
    if isinstance(policy, FewBit):
        refused = few_bit_refusal(catalog.get(model.ffn.activation))
        if refused:
            return {**told, "saved_bytes": None, "products": None, "refused": refused}
    ffn = dataclasses.replace(model.ffn, memory=policy)
    return {**told, **dataclasses.asdict(ffn_cost(model.d_model, ffn, number_bytes)), "refused": ""}


def _disk(config: PretrainConfig, steps: int, corpus_sequences: int) -> dict[str, int]:
    """Sizes in bytes. A new checkpoint is whole before the oldest goes: one more than is kept.

    corpus_sequences   of the packed corpus, which lies there once however often it is read
    """
    checkpoint = checkpoint_bytes(config.model, config.optimizer)
    saved = -(-steps // config.engine.checkpoint_every)
    keep = config.engine.keep_checkpoints
    token_bytes = 2 if config.model.vocab_size <= 2**16 else 4
    return {
        "checkpoint": checkpoint,
        "checkpoints_kept": checkpoint * min(keep, saved),
        "checkpoints_at_most": checkpoint * min(keep + 1, saved),
        "tokens": corpus_sequences * config.context * token_bytes,
    }


def _time(flops: int, devices: Devices | None) -> dict[str, Any] | None:
    if devices is None:
        return None
    return {
        "seconds": flops / (devices.peak_flops * ASSUMED_UTILISATION),
        "devices": f"{devices.count}x{devices.name}",
        "assumed_utilisation": ASSUMED_UTILISATION,
    }


def _curve(config: PretrainConfig, total: int) -> list[dict[str, float]]:
    points = sorted({round(total * i / CURVE_POINTS) for i in range(1, CURVE_POINTS + 1)})
    return [{"sequence": s, "rate": config.schedule.rate(s, total)} for s in points]
