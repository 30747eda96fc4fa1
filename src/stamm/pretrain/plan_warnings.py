"""Warnings and notes of `stamm plan`. No torch here.

Each warning is one line with the cause, and a fix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stamm.base.units import bytes_text, count_text, seconds_text
from stamm.engine import attention_support, float8_support
from stamm.engine.estimate import DEVICES, Devices, Setting
from stamm.losses.config import Goldfish
from stamm.models.config import Dense
from stamm.optim.config import AdEMAMix, CustomOptimizer
from stamm.optim.schedules import WarmupStableDecay
from stamm.pretrain.config import PretrainConfig

HOUR, MINUTE = 3600.0, 60.0
LARGEST_SHARE = 0.05  # of the time that writing checkpoints may take
COLLAPSED = 0.01  # of windows that the released hash maps to 0
LANES = 64  # rows of a matrix that GPUs multiply at once

# Up to here repeated text is worth about as much as new: Muennighoff et al. 2023 (arXiv 2305.16264).
_WORTHWHILE_PASSES = 4


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """A planned run: configuration, devices, and the `facts` that `plan.plan` computes."""

    config: PretrainConfig
    devices: Devices | None
    setting: Setting
    facts: dict[str, Any]


def warnings(planned: PlanContext) -> list[dict[str, str]]:
    """Causes of wasted time or of a failing run, as {"what": .., "fix": ..}."""
    causes = (
        *_kernels(planned),
        *_division(planned),
        *_memory(planned),
        *_lengths(planned),
        *_saves(planned),
        *_numbers(planned),
        *_optimizer(planned),
    )
    return [{"what": what, "fix": fix} for what, fix in causes]


def notes(planned: PlanContext) -> list[str]:
    """Unusual values that may be intended."""
    ratio, optimizer = planned.facts["tokens_per_parameter"], planned.config.optimizer
    few = "below 1: most parameters see less than one token"
    many = "above 2000: a larger model may be the better use of the work"
    unusual = []
    if not 1 <= ratio <= 2000:
        unusual.append(f"{count_text(ratio)} tokens a parameter, {few if ratio < 1 else many}")
    steps = planned.facts["steps"]
    said = rare_gradients(optimizer, steps)
    if said and not rare_gradients(optimizer, min(steps, RARE_STEPS)):  # else a warning
        unusual.append(said)
    if isinstance(optimizer, CustomOptimizer):
        kept = optimizer.state_per_parameter
        unusual.append(
            f"the memory of optimizer {optimizer.reference} is "
            + (
                "unknown: counted as 2 numbers per parameter; set optimizer.state_per_parameter"
                if kept is None
                else f"estimated from {kept:g} numbers of 32 bits per parameter"
            )
        )
    return unusual


def collapse(goldfish: Goldfish) -> float:
    """Share of windows whose product of h ids is 0 modulo 2^64, of ids that are equally likely.

    An id holds j factors of 2 with probability 2^-(j+1), so that h of them hold fewer than 64 with
    probability sum_j C(h - 1 + j, j) 2^-(h + j), j = 0 .. 63. Real ids are smaller and the least of them
    are frequent: 19 to 34 % of real windows were 0 with h = 50, where this gives 9 %.
    """
    h = min(goldfish.h, 2000)  # the result is 1 in float64 from there on
    return 1.0 - sum(math.comb(h - 1 + j, j) * 2.0 ** -(h + j) for j in range(64))


def _division(planned: PlanContext) -> Iterator[tuple[str, str]]:
    config, how = planned.config, planned.setting
    parallel, model = config.engine.parallel, config.model
    block, processes = how.context * how.tensor, how.data * how.context * how.tensor
    if planned.devices is not None and processes != planned.devices.count:
        asked = "?" if parallel.data is None else parallel.data
        yield (
            f"engine.parallel asks for {asked} x {how.context} x {how.tensor} processes (data x context"
            f" x tensor), and there are {planned.devices.count} devices",
            f"Take a multiple of {block} devices, or change engine.parallel",
        )
    if how.data % how.replicas:
        yield (
            f"engine.parallel.replicas = {how.replicas} does not divide the {how.data} data-parallel processes",
            f"Use a divisor of {how.data}, or another number of processes",
        )
    for size in sorted({stage.size for stage in config.batch if stage.size % how.data}):
        yield (
            f"a step of {size:,} sequences does not divide over {how.data:,} processes",
            f"Make batch sizes multiples of {how.data:,}, or take fewer devices, or give more of them"
            " to engine.parallel.context or tensor",
        )
    pieces = (2 * how.context if how.context > 1 else 1) * how.tensor
    if config.context % pieces:
        yield (
            f"context = {config.context} tokens do not divide into {pieces} equal parts",
            f"Use a multiple of {pieces}",
        )
    if how.tensor == 1:
        return
    if not isinstance(model.ffn.linear, Dense):
        yield (
            f"engine.parallel.tensor = {how.tensor} cannot split {type(model.ffn.linear).__name__} matrices",
            "Divide the work over engine.parallel.data or context",
        )
    for name, count in (
        ("num_heads", model.num_heads),
        ("num_kv_heads", model.num_kv_heads),
        ("ffn.width", model.ffn.width),
    ):
        if count % how.tensor:
            yield (
                f"engine.parallel.tensor = {how.tensor} does not divide model.{name} = {count}",
                f"Use a divisor of {count} for engine.parallel.tensor",
            )


def _kernels(planned: PlanContext) -> Iterator[tuple[str, str]]:
    config, there = planned.config, DEVICES[planned.devices.name] if planned.devices else None
    capability = there.capability if there and planned.setting.gpu else None
    yield from float8_support.refusals(config.engine, config.model, config.context, capability)
    yield from attention_support.refusals(config.engine, config.model, gpu=planned.setting.gpu)


def _memory(planned: PlanContext) -> Iterator[tuple[str, str]]:
    config, memory = planned.config, planned.facts["memory"]
    there, here = memory["device"], planned.devices is None
    if memory["per_device"] <= there:
        return
    fixes = []
    if memory["sequences_in_flight_per_device"] > 1:
        fixes.append("a smaller micro_batch")
    if config.engine.activation_checkpointing == "none":
        fixes.append("engine.activation_checkpointing=layers")
    if config.engine.precision == "float32":
        fixes.append("engine.precision=bfloat16")
    if planned.setting.replicas > 1:
        fixes.append("fewer engine.parallel.replicas")
    fixes.append("a smaller model" if here else "more devices")
    yield (
        f"{'this machine' if here else 'a device'} needs {bytes_text(memory['per_device'])} ({memory['fullest']}) and has"
        f" {bytes_text(there)}",
        f"Use {', or '.join(fixes)}",
    )


def _lengths(planned: PlanContext) -> Iterator[tuple[str, str]]:
    schedule, total = planned.config.schedule, planned.facts["sequences"]
    passes = planned.facts["passes"]
    if passes is not None and passes > _WORTHWHILE_PASSES:
        yield (
            f"{total:,} sequences are {passes:,.1f} passes over the corpus; from about"
            f" {_WORTHWHILE_PASSES} on, repeated text improves the model less and less",
            "Train on fewer sequences, or on more text",
        )
    warmup = schedule.warmup_sequences
    if warmup >= total:
        yield (
            f"schedule.warmup_sequences = {warmup:,} is no shorter than the run of {total:,}: the learning"
            " rate only rises",
            f"Use less than {total:,}",
        )
    if isinstance(schedule, WarmupStableDecay):
        asked = schedule.decay_sequences
        decay = round(schedule.decay_share * total) if asked is None else asked
        name = "decay_share" if asked is None else "decay_sequences"
        cooldown = f"the cooldown of {decay:,} sequences (schedule.{name})"
        if decay > total:
            yield (f"{cooldown} is longer than the run of {total:,}", "Shorten it, or train longer")
        elif warmup < total < warmup + decay:
            yield (
                f"{cooldown} and the warm-up of {warmup:,} overlap in a run of {total:,}: the cooldown is"
                f" cut to {total - warmup:,}",
                "Shorten one, or train longer",
            )
    optimizer, steps = planned.config.optimizer, planned.facts["steps"]
    begin = planned.config.begin
    counts_on = begin is not None and begin.moments == "keep"  # they began in another run
    if isinstance(optimizer, AdEMAMix) and not counts_on:
        for name in ("alpha_warmup_steps", "beta3_warmup_steps"):
            length = getattr(optimizer, name)
            if length is not None and length > steps:
                yield (
                    f"optimizer.{name} = {length:,} is longer than the run of {steps:,} steps: its end is"
                    " never reached",
                    f"Use at most {steps:,}, or none for the run's own length",
                )


def _saves(planned: PlanContext) -> Iterator[tuple[str, str]]:
    saves = planned.facts["checkpoints"]
    between, every = saves["between_seconds"], saves["every_steps"]
    if between is None:
        return
    if between > HOUR:
        fitting = max(int(every * HOUR / between), 1)
        yield (
            f"a checkpoint is written every {seconds_text(between)}: as much work may be lost",
            f"Set engine.checkpoint_every={fitting} or less",
        )
    elif saves["share"] > LARGEST_SHARE and saves["count"] * saves["waits_seconds"] > MINUTE:
        needed = saves["waits_seconds"] * (1 / LARGEST_SHARE - 1)
        fitting = math.ceil(every * needed / between)
        yield (
            f"writing checkpoints takes {saves['share']:.0%} of the time, {seconds_text(saves['waits_seconds'])}"
            f" every {seconds_text(between)}",
            f"Set engine.checkpoint_every={fitting} or more, or engine.async_checkpointing=true",
        )


RARE_STEPS = 1000  # steps without a gradient that rows of rare tokens often have


def rare_gradients(optimizer: object, num_steps: int) -> str:
    """Warning on AdEMAMix and weights that seldom have a gradient, within `num_steps` steps; "" if none."""
    if not isinstance(optimizer, AdEMAMix):
        return ""
    reached = optimizer.steps_to_full_update()
    if reached is None or reached >= num_steps:
        return ""
    return (
        f"optimizer.beta3 = {optimizer.beta3:g} is above sqrt(beta2) = {math.sqrt(optimizer.beta2):g}: a "
        f"weight without a gradient for {reached:,} steps, such as those of a rare token, then moves by more than the "
        "learning rate in each step"
    )


def _optimizer(planned: PlanContext) -> Iterator[tuple[str, str]]:
    steps = planned.facts["steps"]
    if said := rare_gradients(planned.config.optimizer, min(steps, RARE_STEPS)):
        yield said, "Use beta2 of at least beta3 squared, such as optimizer.beta2=0.999"


def _numbers(planned: PlanContext) -> Iterator[tuple[str, str]]:
    vocabulary, goldfish = planned.config.model.vocab_size, planned.config.goldfish
    if planned.setting.gpu and planned.config.engine.precision == "float32":
        yield (
            'engine.precision = "float32": GPUs multiply many times faster in bfloat16, which the'
            " time given here assumes",
            "Set engine.precision=bfloat16",
        )
    if vocabulary % LANES:
        whole = -(-vocabulary // LANES) * LANES
        yield (
            f"model.vocab_size = {vocabulary:,} is not a multiple of {LANES}: products on GPUs are"
            " slower",
            f"Use {whole:,}",
        )
    if goldfish is not None and goldfish.hash == "apertus" and collapse(goldfish) > COLLAPSED:
        yield (
            f'goldfish.hash = "apertus" with h = {goldfish.h} wraps to 0 for {collapse(goldfish):.0%} or'
            " more of all windows, which are then never masked",
            "Use goldfish.hash=stamm, unless you reproduce the released run",
        )
