"""`stamm sample`: completions of prompts by a trained model."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from stamm.align.sampling.sample_config import SampleConfig
from stamm.base.config import override
from stamm.base.console import Console
from stamm.base.errors import ConfigError, RunError
from stamm.cli.arg_types import text
from stamm.recipes.jobs import job
from stamm.runs.arms import input_of_arm, trained_arms
from stamm.runs.job import Workspace


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("run", type=text, metavar="RUN", help="a run folder of one trained model")
    parser.add_argument(
        "changes",
        type=text,
        nargs="*",
        default=[],
        metavar="key=value",
        help="prompts=FILE, n, temperature, top_k, top_p, max_new_tokens, seed, slots",
    )
    parser.add_argument(
        "--out", type=text, metavar="PATH", help="output folder (default: completions)"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Sample and print the path of the completions."""
    root = Path(options.run)
    if not (root / "config.json").is_file():
        raise RunError(f"{root} is not a run folder", fix="`stamm ls runs` lists them")
    arms = trained_arms(root)
    if len(arms) != 1:
        named = ", ".join(str(arm) for arm in arms)
        raise RunError(
            f"{root} holds {len(arms)} trained models",
            fix=f"Name one: {named}" if arms else "Finish its run first",
        )
    config = override(SampleConfig(prompts="-"), options.changes)
    if config.prompts == "-":
        raise ConfigError("no prompts are given", fix="Set prompts=FILE")
    if not Path(config.prompts).is_file():
        raise ConfigError(f"{config.prompts} is not a file", where="prompts")
    folder = Path(options.out or "completions")
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"model": arms[0] / "model", "tokenizer": input_of_arm(arms[0], "tokenizer")}
    with contextlib.closing(Console()) as console:
        job("sample")(config, Workspace(folder=folder, inputs=inputs, progress=console))
    print(folder / "completions.jsonl")
    return 0
