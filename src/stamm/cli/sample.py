"""`stamm sample`: completions of prompts by a trained model, or by a Hugging Face folder."""

from __future__ import annotations

import argparse

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text


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
        "prompts_per_shard, engine, device, vector=FILE, strength, any_model",
    )
    parser.add_argument("--arm", type=text, help="the arm of a run with several")
    parser.add_argument(
        "--out", type=text, metavar="PATH", help="output folder (default: completions)"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Sample and print the path of the completions."""
    with interrupt_delayed():
        from stamm.align.verb import sample
    print(sample(options.model, *options.changes, arm=options.arm, out=options.out).file)
    return 0
