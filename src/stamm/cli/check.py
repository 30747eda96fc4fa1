"""`check`: proofs, probes and conformance of an activation, or of another's implementation of it."""

from __future__ import annotations

import argparse

from stamm.cli.words import text


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of the verb."""
    parser.add_argument(
        "name",
        type=text,
        nargs="?",
        metavar="NAME",
        help="an activation; file.py:SPEC or a folder with spec.json for one of your own",
    )
    parser.add_argument(
        "--against",
        type=text,
        action="append",
        default=[],
        metavar="module:function",
        help="hold this implementation to the budget too (file.py:function, a module's class)",
    )
    parser.add_argument(
        "--golden", type=text, metavar="FOLDER", help="also judge with the golden vectors there"
    )
    parser.add_argument(
        "--write-golden",
        type=text,
        metavar="FOLDER",
        help="write golden vectors there, by content hash, and check nothing",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="20,000 float32 inputs instead of 400,000, and fewer points in the proofs",
    )
    parser.add_argument("--all", action="store_true", help="every entry of the catalogue, quickly")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Check one activation, or all of them. 0 when everything holds, 1 when something does not."""
    from stamm.cli.check_work import check  # loads torch and SymPy

    return check(options)
