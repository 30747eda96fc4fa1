"""`stamm bench activations`: time activations and other implementations of them."""

from __future__ import annotations

import argparse

from stamm.cli.arg_types import text


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `bench`."""
    parser.add_argument("thing", choices=["activations"], help="what is timed")
    parser.add_argument(
        "names",
        type=text,
        nargs="*",
        default=[],
        metavar="NAME",
        help="activations, your own as file.py:SPEC or a folder with spec.json"
        " (default: a dozen of the catalogue)",
    )
    parser.add_argument(
        "--shape",
        type=text,
        action="append",
        metavar="ROWSxCOLUMNS",
        help="input shape; may be repeated (default: 4096x8192)",
    )
    parser.add_argument(
        "--dtype",
        type=text,
        action="append",
        metavar="DTYPE",
        help="bfloat16, float16, float32 or float64; may be repeated (default: bfloat16)",
    )
    parser.add_argument(
        "--device", type=text, help="cpu, cuda or cuda:N (default: cuda if available)"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="calls of each implementation (default: 20)"
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="do not time torch.compile of the other implementations (compilation is slow)",
    )
    parser.add_argument(
        "--out", type=text, metavar="FILE.jsonl", help="also append one JSON line per measurement"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Measure, print, and append to --out if given."""
    from stamm.cli.bench_activations import bench  # loads torch

    return bench(options)
