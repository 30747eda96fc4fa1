"""`stamm verify`: check a released folder offline."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from stamm.base.errors import visible
from stamm.base.schema import read_record
from stamm.base.units import bytes_text
from stamm.cli.arg_types import text
from stamm.cli.output import print_json
from stamm.release.checksums import SUMS, list_files
from stamm.release.layout import RECORD, SIGNATURE
from stamm.release.verify import verify
from stamm.runs.schemas.release import ReleaseFile

_UNPROVED = (
    "Without a checked signature this shows damage and files that contradict each other, not who wrote the"
    " folder: an attacker who can write to it can change files, records and sums together"
)


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `verify`."""
    parser.add_argument("folder", type=text, metavar="FOLDER", help="a released folder")
    parser.add_argument(
        "--all", action="store_true", help="print every problem, not only the first"
    )
    parser.add_argument(
        "--key", type=text, metavar="FILE", help="public key (PEM) that the signature must hold for"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the first problem, or all; exit 1 when there is one."""
    folder = Path(options.folder)
    problems = verify(folder, Path(options.key) if options.key else None)
    found = list(problems if options.all else itertools.islice(problems, 1))
    signed = (folder / SIGNATURE).is_file()
    if options.json:
        print_json(
            {
                "folder": str(folder),
                "problems": [{"file": one.file, "what": one.what} for one in found],
                "complete": options.all,
                "signature": _signature(options, signed, bool(found)),
            }
        )
        return 1 if found else 0
    for one in found:
        print(f"{visible(one.file, 400)} {visible(one.what, 400)}")
    if found:
        return 1
    names = list_files(folder)
    size = sum((folder / name).stat().st_size for name in names)
    print(
        f"{folder}: {len(names)} files, {bytes_text(size)}: every file has the SHA-256 in {SUMS}, and the"
        " records and the card agree with the weights"
    )
    unknown = read_record(ReleaseFile, folder / RECORD).without_receipt
    if unknown:
        shown = ", ".join(visible(name, 80) for name in unknown[:8]) + ", …" * (len(unknown) > 8)
        print(
            f"{len(unknown)} files had no receipt in the run, so nothing shows what wrote them: {shown}"
        )
    if options.key:
        print(f"signed by the private key of {options.key}")
    elif signed:
        print(f"signed; name the public key with --key to check the signature. {_UNPROVED}")
    else:
        print(f"not signed. {_UNPROVED}")
    return 0


def _signature(options: argparse.Namespace, signed: bool, found: bool) -> str | None:
    """It is the last check: without --all a problem before it ends the checks."""
    if options.key and (options.all or not found):
        return "checked"
    return "not checked" if signed or options.key else None
