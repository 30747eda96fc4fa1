"""`stamm sample`: completions of prompts by a trained model, or by a Hugging Face folder."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from stamm.align.sampling.sample_config import SampleConfig
from stamm.base.config import override
from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text
from stamm.recipes.jobs import job
from stamm.runs.job import Workspace


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "model",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run, one arm of it, or a Hugging Face folder",
    )
    add_changes(
        parser,
        "prompts=FILE, n, temperature, top_k, top_p, max_new_tokens, seed, slots, "
        "prompts_per_shard, engine, device",
    )
    parser.add_argument("--arm", type=text, help="the arm of a run with several")
    parser.add_argument(
        "--out", type=text, metavar="PATH", help="output folder (default: completions)"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Sample and print the path of the completions."""
    config = override(SampleConfig(prompts="-"), options.changes)
    if config.prompts == "-":
        raise ConfigError("no prompts are given", fix="Set prompts=FILE")
    with interrupt_delayed():
        from stamm.align.data.data_files import locate_file
        from stamm.align.model_source import find_model
    source = find_model(options.model, options.arm)
    locate_file(config.prompts, "prompts")
    folder = Path(options.out or "completions")
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"model": source.model, "tokenizer": source.tokenizer}
    with contextlib.closing(Console()) as console:
        job("sample")(config, Workspace(folder=folder, inputs=inputs, progress=console))
    print(folder / "completions.jsonl")
    return 0
