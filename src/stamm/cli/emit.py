"""`stamm emit`: an activation as source text of another language or runtime."""

from __future__ import annotations

import argparse
import sys

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import text
from stamm.cli.output import print_json, print_pairs

TARGET_NAMES = "c, cuda, jax, js, latex, metal, mlx, numpy, onnx, triton, wgsl"


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `emit`."""
    parser.add_argument(
        "name",
        type=text,
        metavar="NAME",
        help="an activation, a derived folder, or your own as file.py:SPEC",
    )
    parser.add_argument(
        "target",
        type=text,
        metavar="TARGET",
        help=f"{TARGET_NAMES}, or your own as mine.py:NAME; target=TARGET is the same",
    )
    parser.add_argument(
        "--out", type=text, metavar="FOLDER", help="write the module and its test there"
    )
    parser.add_argument("--force", action="store_true", help="replace files of other contents")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the text, or write it with its test."""
    with interrupt_delayed():
        from stamm.activations.emitters.verb import emit
    emitted = emit(
        options.name,
        options.target,
        out=options.out,
        force=options.force,
        dry_run=options.dry_run,
    )
    if options.json:
        print_json(emitted.plain())
    elif emitted.folder is None:
        sys.stdout.write(emitted.text)
    else:
        label = "would write" if options.dry_run else "file"
        print_pairs([(label, str(emitted.folder / file)) for file in emitted.files])
    return 0
