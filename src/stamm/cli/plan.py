"""`stamm plan`: a recipe laid out before it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text, parse_count, seconds_text
from stamm.cli.corpus_plan import show_corpus_plan
from stamm.cli.output import print_json, print_pairs
from stamm.cli.recipe import resolve
from stamm.cli.words import text
from stamm.corpus.foreign import read_foreign
from stamm.engine.estimate import Devices, parse_devices
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan
from stamm.recipes.corpus import CorpusRecipe
from stamm.recipes.length import CorpusLength, corpus_length, packed_length
from stamm.recipes.study import Study

_BARS = "▁▂▃▄▅▆▇█"


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of `plan`."""
    parser.add_argument("recipe", type=text, help="a recipe's name, or a Python file with one")
    parser.add_argument(
        "changes", type=text, nargs="*", metavar="key=value", help="changes to the recipe"
    )
    parser.add_argument("--gpus", metavar="NxNAME", help="where it is to run, such as 8xH200")
    parser.add_argument(
        "--sequences", metavar="N", help="length of the run, whatever the recipe says"
    )
    parser.add_argument(
        "--out", type=text, metavar="FOLDER", help="a corpus run to take rates from"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the plan of a pretraining recipe, or of every arm of a study."""
    recipe = resolve(options.recipe, options.changes)
    config = recipe.config
    if isinstance(config, CorpusRecipe):
        return show_corpus_plan(Path(options.out or Path("runs") / recipe.name), options.json)
    if not isinstance(config, (Study, PretrainConfig)):
        raise ConfigError(
            f"recipe {recipe.name} has no plan", fix="`stamm run` does it; `stamm show` prints it"
        )
    devices = parse_devices(options.gpus) if options.gpus else None
    if options.sequences is not None:
        config = _with_length(config, parse_count(options.sequences))
    corpus = _corpus_length(config, Path("runs") / recipe.name)
    runs: dict[str, PretrainConfig] = (
        {arm.name: config.pretrain_of(arm) for arm in config.arms}
        if isinstance(config, Study)
        else {"": config}
    )
    plans = {name: _plan(run, devices, corpus) for name, run in runs.items()}
    if options.json:
        print_json(plans if isinstance(config, Study) else plans[""])
        return 0
    for name, facts in plans.items():
        if name:
            print(f"\narm {name}")
        print_pairs(_lines(facts))
    return 0


def _plan(
    config: PretrainConfig, devices: Devices | None, corpus: CorpusLength | None
) -> dict[str, Any]:
    known = None if corpus is None else corpus.sequences(config.context)
    return {
        **plan(config, devices, known),
        "length": "as given" if corpus is None else corpus.source,
    }


def _with_length(config: Study | PretrainConfig, sequences: int) -> Study | PretrainConfig:
    try:
        if isinstance(config, Study):
            return replace(config, pretrain=replace(config.pretrain, sequences=sequences))
        return replace(config, sequences=sequences)
    except ConfigError as error:
        raise ConfigError(error.what, where="--sequences", fix=error.fix) from None


def _corpus_length(config: Study | PretrainConfig, run: Path) -> CorpusLength | None:
    """The length of the corpus, where it decides the length of the run; None where it does not."""
    pretrain = config.pretrain if isinstance(config, Study) else config
    if pretrain.sequences is not None:
        return None
    if isinstance(config, Study):
        return corpus_length(config, run)
    foreign = config.foreign
    if not config.pack and foreign is None:
        raise ConfigError(
            "the length of this run follows from its corpus, and it names none",
            fix="Set pack=FOLDER, sequences=N, or --sequences N",
        )
    if foreign is not None:
        tokens = sum(read_foreign(Path(prefix)).num_tokens for prefix in foreign.prefixes)
        names = ", ".join(foreign.prefixes)
        return CorpusLength(tokens=tokens, source=f"{tokens:,} tokens in {names}")
    return packed_length(Path(config.pack))


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
        ("length", facts["length"]),
        ("steps", f"{facts['steps']:,}"),
        ("batch", batch),
        ("work", f"{flops_text(flops['total'])}, {flops_text(flops['per_token'])} a token"),
        ("memory", f"{bytes_text(memory['total'])} in all, {bytes_text(memory['per_device'])} a device (estimate, {memory['precision']}, {memory['sequences_in_flight_per_device']} sequences in flight a device, sharded evenly, nothing recomputed outside the ffn)"),
        *((f"  {part}", bytes_text(memory[part])) for part in ("weights", "gradients", "master_weights", "moments", "activations")),
        ("ffn memory", "what a block keeps for a token, its input counted; its matrix products a step"),
        *((f"  {policy['policy']}", _policy_text(policy)) for policy in facts["ffn_memory"]),
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


def _policy_text(policy: dict[str, Any]) -> str:
    if policy["refused"]:
        return str(policy["refused"])
    bits = f", {policy['bits']} bits" if "bits" in policy else ""
    use = "  <- in use" if policy["in_use"] else ""
    return f"{policy['saved_bytes']:,} B, {policy['products']} products{bits}{use}"


def _sparkline(rates: list[float]) -> str:
    peak = max(rates)
    bars = "".join(_BARS[min(int(rate / peak * 8), 7)] for rate in rates)
    return f"{bars}  peak {peak:g}, last {rates[-1]:g}"
