"""`stamm receipt`: what the ledger of a release holds about one URL, with a proof."""

from __future__ import annotations

import argparse

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text
from stamm.cli.verify import print_receipt


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `receipt`."""
    parser.add_argument("release", type=text, metavar="RELEASE", help="a released folder")
    add_changes(
        parser,
        "url=URL to ask for, and receipts=FOLDER: the private folder with the key that the release was"
        " written with",
    )
    parser.add_argument(
        "--out", type=text, metavar="FILE", help="write the receipt here, and print what it shows"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the receipt, or with --out what it shows."""
    with interrupt_delayed():
        from stamm.release.consent_receipt import receipt, receipt_text
    made = receipt(options.release, *options.changes, out=options.out)
    if options.out is None:
        print(receipt_text(made), end="")
    else:
        print_receipt(made)
        print(options.out)
    return 0
