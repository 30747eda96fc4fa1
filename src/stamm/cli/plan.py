"""`stamm plan`: a recipe laid out before it runs."""

from __future__ import annotations

import argparse
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text, seconds_text
from stamm.cli.output import print_json, print_pairs
from stamm.cli.recipe import resolve
from stamm.engine.estimate import parse_devices
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan
from stamm.recipes.study import Study

_BARS = "▁▂▃▄▅▆▇█"


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of `plan`."""
    parser.add_argument("recipe", help="a recipe's name, or a Python file with one")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes to the recipe")
    parser.add_argument("--gpus", metavar="NxNAME", help="where it is to run, such as 8xH200")
    parser.add_argument(
        "--sequences",
        type=int,
        metavar="N",
        help="length, where a corpus still to be built decides",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the plan of a pretraining recipe, or of every arm of a study."""
    config = resolve(options.recipe, options.changes).config
    devices = parse_devices(options.gpus) if options.gpus else None
    if options.sequences is not None and options.sequences < 1:
        raise ConfigError(f"--sequences {options.sequences} is not positive")
    runs: dict[str, PretrainConfig] = (
        {arm.name: config.pretrain_of(arm) for arm in config.arms}
        if isinstance(config, Study)
        else {"": config}
    )
    plans = {name: plan(run, devices, _length(run, options)) for name, run in runs.items()}
    if options.json:
        print_json(plans if isinstance(config, Study) else plans[""])
        return 0
    for name, facts in plans.items():
        if name:
            print(f"\narm {name}")
        print_pairs(_lines(facts))
    return 0


def _length(config: PretrainConfig, options: argparse.Namespace) -> int | None:
    """Sequences of the corpus, as given by the recipe or on the command line."""
    if config.sequences is not None or options.sequences is not None:
        return options.sequences if options.sequences is not None else config.sequences
    raise ConfigError(
        "the length of this run follows from its corpus, which is built when it runs",
        fix="Give it: --sequences 2700, or pretrain.sequences=2700",
    )


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    memory, disk, flops = facts["memory"], facts["disk"], facts["flops"]
    parts = ("embedding", "attention", "ffn", "activation", "norms", "head")
    batch = "; ".join(
        f"{b['sequences']:,} sequences = {count_text(b['tokens'])} tokens"
        + (f" from sequence {b['from_sequence']:,}" if b["from_sequence"] else "")
        for b in facts["batch"]
    )
    lines = [
        ("parameters", f"{count_text(facts['parameters']['total'])} ({facts['parameters']['total']:,})"),
        *((f"  {part}", f"{facts['parameters'][part]:,}") for part in parts),
        ("tokens", f"{count_text(facts['tokens'])} in {facts['sequences']:,} sequences of {facts['context']:,}"),
        ("steps", f"{facts['steps']:,}"),
        ("batch", batch),
        ("work", f"{flops_text(flops['total'])}, {flops_text(flops['per_token'])} a token"),
        ("memory", f"{bytes_text(memory['total'])} in all, {bytes_text(memory['per_device'])} a device (estimate, {memory['precision']}, {memory['sequences_in_flight_per_device']} sequences in flight a device, sharded evenly, nothing recomputed)"),
        *((f"  {part}", bytes_text(memory[part])) for part in ("weights", "gradients", "master_weights", "moments", "activations")),
        ("disk", f"{bytes_text(disk['checkpoint'])} a checkpoint, {bytes_text(disk['checkpoints_kept'])} kept; {bytes_text(disk['tokens'])} of tokens"),
        ("learning rate", _sparkline([point["rate"] for point in facts["learning_rate"]])),
    ]  # fmt: skip
    time = facts["time"]
    if time:
        said = f"{seconds_text(time['seconds'])} on {time['devices']} at {time['assumed_utilisation']:.0%} of peak (assumed: Apertus 8B's)"
        lines.insert(-2, ("time", said))
    else:
        lines.insert(-2, ("time", "not estimated for this machine; give --gpus 8xH200"))
    return lines


def _sparkline(rates: list[float]) -> str:
    peak = max(rates)
    bars = "".join(_BARS[min(int(rate / peak * 8), 7)] for rate in rates)
    return f"{bars}  peak {peak:g}, last {rates[-1]:g}"
