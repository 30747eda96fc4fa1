"""`stamm check`: proofs and accuracy of an activation, or the Goldfish mask of a corpus."""

from __future__ import annotations

import argparse

from stamm.base.errors import ConfigError
from stamm.cli.arg_types import text

GOLDFISH = "goldfish"


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `check`."""
    parser.usage = (
        "stamm check NAME [flags]\n       stamm check --all\n"
        "       stamm check goldfish PACK_OR_RUN [key=value ...] [--json]"
    )
    parser.add_argument(
        "name",
        type=text,
        nargs="?",
        metavar="NAME",
        help="an activation, your own as file.py:SPEC or a folder with spec.json; or goldfish",
    )
    parser.add_argument(
        "rest",
        type=text,
        nargs="*",
        default=[],
        metavar="PACK_OR_RUN",
        help="for goldfish: a packed corpus or a run, then k=, h=, hash=, salt=, context= (the length"
        " of a sequence, for hash=apertus), split=, zero_share= (allowed share of windows with key 0);"
        " defaults are the run's own settings",
    )
    parser.add_argument(
        "--against",
        type=text,
        action="append",
        default=[],
        metavar="module:function",
        help="also check this implementation (file.py:function, or a class of a module)",
    )
    parser.add_argument(
        "--golden",
        type=text,
        metavar="FOLDER",
        help="also check against the golden vectors in FOLDER",
    )
    parser.add_argument(
        "--write-golden",
        type=text,
        metavar="FOLDER",
        help="write golden vectors to FOLDER and check nothing",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="20,000 float32 inputs instead of 400,000, and fewer points in the proofs",
    )
    parser.add_argument(
        "--all", action="store_true", help="check every entry of the catalogue, with --quick"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Run the check; returns 0 when everything passes, else 1."""
    if options.name == GOLDFISH:
        return _goldfish(options)
    if options.rest:
        raise ConfigError(
            f"{options.rest[0]!r} follows the name of an activation",
            where="the command line",
            fix="Check one activation at a time; or `stamm check goldfish PACK_OR_RUN`",
        )
    from stamm.cli.check_activation import check  # loads torch and SymPy

    return check(options)


def _goldfish(options: argparse.Namespace) -> int:
    others = [options.against, options.golden, options.write_golden, options.quick, options.all]
    if any(other not in (None, False, []) for other in others):
        raise ConfigError("goldfish takes no flags but --json", where="the command line")
    if not options.rest:
        raise ConfigError(
            "no corpus is named",
            where="the command line",
            fix="Name a packed corpus or a run: `stamm check goldfish runs/demo`",
        )
    from stamm.cli.check_goldfish import check_goldfish  # loads NumPy and pyarrow

    return check_goldfish(options.rest[0], options.rest[1:], options.json)
