"""`stamm release`: write everything that a run has about one model to a folder, and upload it."""

from __future__ import annotations

import argparse

from stamm.base.shutdown import interrupt_delayed
from stamm.base.units import bytes_text
from stamm.cli.arg_types import add_changes, text
from stamm.cli.output import print_table


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `release`."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN",
        help="one arm, a run with one arm, or the name of an activation",
    )
    add_changes(parser, "changes to the settings; evidence.KEY=... for the corpus documents")
    parser.add_argument("--out", type=text, metavar="FOLDER", required=True, help="where to write")
    parser.add_argument("--sign", type=text, metavar="KEY", help="private key (PEM) that signs")
    parser.add_argument("--push", type=text, metavar="OWNER/NAME", help="upload to the Hub, too")
    parser.add_argument(
        "--dry-run", action="store_true", help="print every file with its size, write nothing"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Write the release of one arm, upload it with --push, and print where it is."""
    with interrupt_delayed():
        from stamm.release.verb import release
    new_release = release(
        options.run,
        *options.changes,
        out=options.out,
        sign=options.sign,
        push=options.push,
        dry_run=options.dry_run,
        written=print,
    )
    for target in new_release.exports:
        print(f"export {new_release.arm} to {target} first: its files are not listed")
    if new_release.files:
        sizes = [[str(size), name] for name, size in new_release.files.items()]
        print_table(["bytes", "file"], sizes)
        total, to = (
            sum(new_release.files.values()),
            f", then to {options.push}" if options.push else "",
        )
        print(f"{len(sizes)} files, {bytes_text(total)} -> {new_release.folder}{to}")
    if new_release.arm is None and options.dry_run:
        print(new_release.folder)
    if new_release.pushed:
        print(new_release.pushed)
    return 0
