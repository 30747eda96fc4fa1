"""`stamm bench activations`: what activations cost here, beside others' implementations."""

from __future__ import annotations

import argparse

from stamm.cli.arg_types import text


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of the verb."""
    parser.add_argument("thing", choices=["activations"], help="what is timed")
    parser.add_argument(
        "names",
        type=text,
        nargs="*",
        metavar="NAME",
        help="activations; file.py:SPEC or a folder with spec.json for one of your own"
        " (default: a dozen of the catalogue)",
    )
    parser.add_argument(
        "--shape",
        type=text,
        action="append",
        metavar="ROWSxCOLUMNS",
        help="of the input, again for more shapes (default: 4096x8192)",
    )
    parser.add_argument(
        "--dtype",
        type=text,
        action="append",
        metavar="DTYPE",
        help="bfloat16, float16, float32 or float64, again for more (default: bfloat16)",
    )
    parser.add_argument(
        "--device", type=text, help="cpu, cuda or cuda:N (default: a GPU where there is one)"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="how often each is called (default: 20)"
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="leave out torch.compile of the others: compiling takes longer than measuring",
    )
    parser.add_argument(
        "--out", type=text, metavar="FILE.jsonl", help="also append one JSON line per measurement"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Measure, print, and append to a file where one is named."""
    from stamm.cli.bench_work import bench  # loads torch

    return bench(options)
