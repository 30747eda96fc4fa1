"""`stamm plan`: estimate parameters, memory, FLOPs, time and disk of a recipe."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text, parse_count, seconds_text
from stamm.cli.arg_types import text
from stamm.cli.corpus_plan import show_corpus_plan
from stamm.cli.output import print_json, print_pairs
from stamm.cli.training_time import corpus_length_of, this_machine
from stamm.corpus.inputs import expand
from stamm.engine.estimate import Devices, parse_devices
from stamm.optim.config import CustomOptimizer
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import Throughput, plan
from stamm.pretrain.throughput_model import measured_throughput
from stamm.recipes.branches import CooldownRecipe, LongerRecipe
from stamm.recipes.compare import Comparison
from stamm.recipes.corpus import CorpusRecipe
from stamm.recipes.length import CorpusLength, corpus_length, text_bytes
from stamm.recipes.own_text import OwnText
from stamm.recipes.resolve import resolve
from stamm.recipes.search import Search
from stamm.recipes.study import Study

_BARS = "▁▂▃▄▅▆▇█"
# Text through all steps of a corpus, on one CPU (2026-11-26, a Xeon with AVX-512).
CORPUS_BYTES_PER_S = 400e3


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `plan`."""
    parser.add_argument("recipe", type=text, help="a recipe's name, or a Python file with one")
    parser.add_argument(
        "changes",
        type=text,
        nargs="*",
        default=[],
        metavar="key=value",
        help="changes to the recipe",
    )
    parser.add_argument("--gpus", metavar="NxNAME", help="target devices, such as 8xH200")
    parser.add_argument(
        "--like",
        type=text,
        action="append",
        default=[],
        metavar="RUN",
        help="a finished run on the same device, to predict time from; two of different size are better",
    )
    parser.add_argument("--sequences", metavar="N", help="length of the run; overrides the recipe")
    parser.add_argument(
        "--out",
        type=text,
        metavar="FOLDER",
        help="run folder to read corpus length or rates from (default: runs/RECIPE)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the plan of a pretraining recipe, of every arm of a study, or of a branch's stages."""
    recipe = resolve(options.recipe, options.changes)
    config = recipe.config
    root = Path(options.out or Path("runs") / recipe.name)
    if isinstance(config, CorpusRecipe):
        return show_corpus_plan(root, options.json)
    devices = None if options.gpus is None else parse_devices(options.gpus)
    corpus = None
    if isinstance(config, (CooldownRecipe, LongerRecipe)):
        if options.sequences is not None:
            raise ConfigError(
                f"the length of {recipe.name} is set by its tokens", where="--sequences"
            )
        runs = _branches(config, root)
    elif isinstance(config, (Study, PretrainConfig)):
        if options.sequences is not None:
            config = _with_length(config, options.sequences)
        corpus = corpus_length_of(config, root)
        runs = (
            {arm.name: config.pretrain_of(arm) for arm in config.arms}
            if isinstance(config, Study)
            else {"": config}
        )
    else:
        raise ConfigError(f"recipe {recipe.name} has no plan", fix=_instead(config))
    like = [Path(run) for run in options.like]
    plans = {
        name: _plan(config, devices, corpus, _throughput(like, name, config, devices))
        for name, config in runs.items()
    }
    if options.json:
        print_json(plans[""] if isinstance(config, PretrainConfig) else plans)
        return 0
    for name, facts in plans.items():
        if name:
            print(f"\narm {name}")
        print_pairs(_lines(facts))
    return 0


def _throughput(
    like: list[Path], name: str, config: PretrainConfig, devices: Devices | None
) -> Throughput | None:
    """Of the runs that are named; on this machine's CPU, without any, an expected one."""
    if like or devices is not None:
        return measured_throughput(like, name, config, devices)
    return this_machine(config)[1]


def print_study_plan(study: Study, root: Path) -> None:
    """Print size, length, time and memory of a study's first arm, before it runs on this machine.

    The time of training is that of `this_machine`.
    """
    config, length = study.pretrain_of(study.arms[0]), corpus_length(study, root)
    batch, inputs = config.batch[0].size, len(expand(study.corpus.inputs, "corpus.inputs"))
    if config.sequences is None and length.sequences(config.context) * config.epochs < batch:
        print(f"The text may be too short: about {length.tokens:,} tokens.\n")
        return
    devices, pace = this_machine(config)
    facts = _plan(config, devices, length, pace)
    passes = facts["passes"] or 1.0
    again = f", read {passes:.3g} times" if passes > 1.005 else ""
    print_pairs(
        [
            ("text", f"{inputs:,} {'file' if inputs == 1 else 'files'}, about {bytes_text(text_bytes(study.corpus))} of text"),
            ("model", f"{count_text(facts['parameters']['total'])} parameters, vocabulary {config.model.vocab_size:,}, {config.model.num_layers} layers of width {config.model.d_model}"),
            ("training", f"about {count_text(length.tokens)} tokens{again}: {facts['steps']:,} steps of {batch} x {config.context}"),
            ("time", _short_time(facts["time"], text_bytes(study.corpus))),
            ("memory", f"{bytes_text(facts['memory']['per_device'])} of tensors in training"),
        ]
    )  # fmt: skip
    print()


def _short_time(time: dict[str, Any] | None, text: float) -> str:
    corpus = text / CORPUS_BYTES_PER_S
    if time is None:
        return f"corpus about {seconds_text(corpus)}; training: see `stamm plan` with --gpus"
    both = seconds_text(corpus + time["seconds"])
    return f"about {both}: corpus {seconds_text(corpus)}, training {seconds_text(time['seconds'])} ({time['source']})"


def _branches(config: CooldownRecipe | LongerRecipe, root: Path) -> dict[str, PretrainConfig]:
    """Training configurations of a branch, by arm."""
    return {
        Path(step.folder).name: step.config
        for step in config.steps(root)
        if isinstance(step.config, PretrainConfig)
    }


def _instead(config: object) -> str:
    if isinstance(config, OwnText):
        return "Set inputs=FILES_OR_FOLDER, your own text"
    if isinstance(config, Comparison):
        return "Use `stamm compare` with --dry-run, which prints size and work of each arm"
    if isinstance(config, Search):
        return "Use `stamm search` with --dry-run, which prints candidates, runs and work"
    return "Use `stamm run`, or `stamm show` to print it"


def _plan(
    config: PretrainConfig,
    devices: Devices | None,
    corpus: CorpusLength | None,
    pace: Throughput | None,
) -> dict[str, Any]:
    known = None if corpus is None else corpus.sequences(config.context)
    optimizer = config.optimizer
    if isinstance(optimizer, CustomOptimizer) and optimizer.state_per_parameter is None:
        from stamm.optim.custom import measured_state

        measured = replace(optimizer, state_per_parameter=measured_state(optimizer))
        config = replace(config, optimizer=measured)
    return {
        **plan(config, devices, known, pace),
        "length": "as given" if corpus is None or config.sequences is not None else corpus.source,
    }


def _with_length(config: Study | PretrainConfig, length: str) -> Study | PretrainConfig:
    try:
        sequences = parse_count(length)
        if isinstance(config, Study):
            return replace(config, pretrain=replace(config.pretrain, sequences=sequences))
        return replace(config, sequences=sequences)
    except ConfigError as error:
        raise ConfigError(error.what, where="--sequences", fix=error.fix) from None


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    disk, flops, parameters = facts["disk"], facts["flops"], facts["parameters"]
    parts = ("embedding", "attention", "ffn", "activation", "norms", "head", "guides")
    batch = "; ".join(
        f"{b['sequences']:,} sequences = {count_text(b['tokens'])} tokens"
        + (f" from sequence {b['from_sequence']:,}" if b["from_sequence"] else "")
        for b in facts["batch"]
    )
    sizes = [point["sequences"] for point in facts["batch_size"]]
    return [
        ("parameters", f"{count_text(parameters['total'])} ({parameters['total']:,})"),
        *((f"  {part}", f"{parameters[part]:,}") for part in parts if part != "guides" or parameters[part]),
        *(("optimizer" if not n else "", _group_text(group)) for n, group in enumerate(facts["optimizer"])),
        ("tokens", f"{count_text(facts['tokens'])} in {facts['sequences']:,} sequences of {facts['context']:,}, {count_text(facts['tokens_per_parameter'])} a parameter"),
        ("length", facts["length"]),
        ("steps", f"{facts['steps']:,}"),
        ("batch", batch + (f"  {_bars(sizes)}" if len(set(sizes)) > 1 else "")),
        ("work", f"{flops_text(flops['total'])}, {flops_text(flops['per_token'])} a token"),
        *_memory_lines(facts["memory"], facts["processes"], facts["replicas"]),
        ("ffn memory", "saved per token and block, input included; matrix products per step"),
        *((f"  {policy['policy']}", _policy_text(policy, facts["ffn_memory"])) for policy in facts["ffn_memory"]),
        ("time", _time_text(facts["time"])),
        ("disk", f"{bytes_text(disk['checkpoint'])} a checkpoint, {bytes_text(disk['checkpoints_kept'])} kept, {bytes_text(disk['checkpoints_at_most'])} at most; {bytes_text(disk['tokens'])} of tokens"),
        ("checkpoints", _checkpoints_text(facts["checkpoints"])),
        ("forget", _forget_text(facts["forget"])),
        ("learning rate", _sparkline([point["rate"] for point in facts["learning_rate"]])),
        *(("note", note) for note in facts["notes"]),
        *(("warning", f"{w['what']}. {w['fix']}") for w in facts["warnings"]),
    ]  # fmt: skip


def _group_text(group: dict[str, Any]) -> str:
    return (
        f"{group['group']}: {count_text(group['parameters'])} by {group['method']}, weight decay"
        f" {group['weight_decay']:g}, learning rate x {group['lr_factor']:g}"
    )


def _memory_lines(
    memory: dict[str, Any], grid: dict[str, int], replicas: int
) -> list[tuple[str, str]]:
    where = (
        f"{grid['data']} x {grid['context']} x {grid['tensor']} processes (data x context x tensor)"
    )
    if replicas > 1:
        shards = math.prod(grid.values()) // replicas
        where += f" in {replicas} replicas, each sharded over {shards} process{'es' if shards > 1 else ''}"
    has = f" of {bytes_text(memory['device'])} ({memory['device_source']})"
    parts = ("weights", "gradients", "moments", "gathered", "activations", "host")
    notes = {
        "weights": "float32, sharded; updated by the optimizer",
        "gathered": "unsharded weights in use, "
        + ("float32" if memory["precision"] == "float32" else "bfloat16"),
        "activations": f"kept for the backward pass of {memory['sequences_in_flight_per_device']} sequences",
        "host": "CPU memory while a checkpoint is written",
    }
    lines = [
        ("memory", f"{bytes_text(memory['per_device'])} per device{has}, highest at: {memory['fullest']}; {where}, {memory['precision']}")
    ]  # fmt: skip
    for part in parts:
        if memory[part] or part in ("weights", "gradients", "moments", "activations"):
            note = f"  {notes[part]}" if part in notes else ""
            lines.append((f"  {part}", f"{bytes_text(memory[part])}{note}"))
    totals = ", ".join(f"{bytes_text(m['total'])} {m['name']}" for m in memory["timeline"])
    return [*lines, ("  over a step", totals)]


def _time_text(time: dict[str, Any] | None) -> str:
    if time is None:
        return "not known for this machine's GPU; give --like RUN, or --gpus 8xH200"
    used = f" at {time['utilisation']:.0%} of peak" if time["utilisation"] else ""
    return f"{seconds_text(time['seconds'])} on {time['devices']}{used} ({time['source']})"


def _checkpoints_text(saves: dict[str, Any]) -> str:
    text = f"{saves['count']:,}, every {saves['every_steps']:,} steps"
    if saves["between_seconds"] is None:
        return text
    return (
        f"{text} = {seconds_text(saves['between_seconds'])}; training waits about"
        f" {seconds_text(saves['waits_seconds'])} each (assumed write speed: Apertus')"
    )


def _forget_text(forget: dict[str, Any]) -> str:
    text = f"{forget['share']:.0%} of the steps are trained again to forget a document exactly, on average"
    if forget["share"] - forget["share_kept"] < 0.02:
        return text
    return (
        f"{text}; {forget['share_kept']:.0%} with engine.keep_every={forget['keep_every']}:"
        f" {bytes_text(forget['bytes'])} more of checkpoints"
    )


def _policy_text(policy: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    use = "  <- in use" if policy["in_use"] else ""
    least = min(others, key=lambda other: (other["products"], other["saved_bytes"]))
    best = ", least without further products" if policy is least else ""
    return f"{policy['saved_bytes']:,} B, {policy['products']} products{best}{use}"


def _sparkline(rates: list[float]) -> str:
    return f"{_bars(rates)}  peak {max(rates):g}, last {rates[-1]:g}"


def _bars(values: Sequence[float]) -> str:
    peak = max(values)
    return "".join(_BARS[min(int(value / peak * 8), 7)] for value in values)
