"""`stamm steer`: steering vectors of a model, with their effect and their price."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, add_dry_run, check_model_folder, text
from stamm.cli.output import print_json, print_table


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
        "positive=FILE, negative=FILE, method=probe, layers, strengths, kl, tokens, batch_tokens, seed, threads",
    )
    parser.add_argument("--arm", type=text, help="the arm of a run with several")
    parser.add_argument(
        "--out",
        type=text,
        metavar="PATH",
        help="results of a Hugging Face folder (default: steering/NAME/TEXTS)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_dry_run(parser)


def run(options: argparse.Namespace, verb: str) -> int:
    """Measure the directions; print their effect by layer and strength, the recommendation and the files."""
    check_model_folder(options.model)
    with interrupt_delayed():
        from stamm.steer.verb import PAGE, steer
    steering = steer(
        options.model, *options.changes, arm=options.arm, out=options.out, dry_run=options.dry_run
    )
    if options.dry_run:
        print(f"steer {options.model} -> {steering.folder}")
        return 0
    record = steering.record
    if options.json:
        print_json(asdict(record))
        return 0
    print_table(
        ["layer", "strength", "effect", "random, at most", "KL", "loss, positive", "negative"],
        [
            [
                str(row.layer), f"{row.strength:g}", f"{row.vector.effect:+.3f}",
                f"{max(abs(measures.effect) for measures in row.random):.3f}", f"{row.vector.kl:.4f}",
                f"{row.vector.positive_loss:.3f}", f"{row.vector.negative_loss:.3f}",
            ]
            for row in record.rows
        ],
    )  # fmt: skip
    print(f"unsteered: loss {record.positive.loss:.3f} and {record.negative.loss:.3f}")
    print(record.verdict)
    if record.no_gguf:
        print(f"no vector.gguf: {record.no_gguf}")
    for name in (*record.files, PAGE):
        print(steering.folder / name)
    return 0
