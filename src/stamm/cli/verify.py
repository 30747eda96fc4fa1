"""`stamm verify`: check a released folder offline."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from stamm.base.errors import visible
from stamm.base.json_text import parse_json
from stamm.base.shutdown import interrupt_delayed
from stamm.base.units import bytes_text
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_json, print_pairs
from stamm.release.checksums import SUMS
from stamm.release.layout import RECEIPTS
from stamm.release.records import ConsentReceipt

if TYPE_CHECKING:
    from stamm.release.verification import Verification

_UNPROVED = (
    "Without a checked signature this shows damage and files that contradict each other, not who wrote the"
    " folder: an attacker who can write to it can change files, records and sums together"
)


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `verify`."""
    parser.add_argument(
        "folder", type=text, metavar="FOLDER", help="a released folder, or a receipt.json"
    )
    parser.add_argument(
        "--all", action="store_true", help="print every problem, not only the first"
    )
    parser.add_argument(
        "--key", type=text, metavar="FILE", help="public key (PEM) that the signature must hold for"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="derive exported files and tables again from the weights and the records",
    )
    parser.add_argument(
        "--release",
        type=text,
        metavar="FOLDER",
        help="of a receipt: the release whose ledger it must be of",
    )
    parser.add_argument(
        "--replay",
        type=count,
        metavar="N",
        help="train N segments between checkpoints again, and compare",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="picks the segments (default: random)"
    )
    parser.add_argument(
        "--pack",
        type=text,
        metavar="FOLDER",
        help="packed corpus to replay on (default: run/pack of the release)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the first problem, or all; exit 1 when there is one."""
    with interrupt_delayed():
        from stamm.release.verification import verify
    verification = verify(
        options.folder,
        all=options.all,
        key=options.key,
        release=options.release,
        deep=options.deep,
        replay=options.replay,
        seed=options.seed,
        pack=options.pack,
    )
    receipt = verification.receipt
    if options.json:
        print_json(
            {
                "folder": str(verification.folder),
                "problems": [
                    {"file": problem.file, "what": problem.what}
                    for problem in verification.problems
                ],
                "complete": verification.complete,
                "signature": verification.signature,
                "replay": None
                if (replayed := verification.replayed) is None
                else {"seed": verification.seed, **asdict(replayed)},
                "derived": verification.derived,
            }
            | ({"url": receipt.url, "rows": receipt.rows} if receipt else {})
        )
        return 1 if verification.problems else 0
    for line in _replay_lines(verification):
        print(line)
    for problem in verification.problems:
        print(f"{visible(problem.file, 400)} {visible(problem.what, 400)}")
    if verification.problems:
        return 1
    if receipt is not None:
        print_receipt(receipt)
        if not options.release:
            print(
                f"It leads to the root {visible(receipt.root, 64)}, which it states itself, as it does the name"
                f" of the release: compare the root and the public key {visible(receipt.public_key, 66)} with"
                f" {RECEIPTS} of the release, or name the folder with --release"
            )
        return 0
    sizes = verification.files
    print(
        f"{verification.folder}: {len(sizes)} files, {bytes_text(sum(sizes.values()))}: every file has the SHA-256 in"
        f" {SUMS}, and the records and the card agree with the weights"
    )
    if options.deep:
        again = [name for name in verification.derived if " " not in name]
        print(f"{len(again)} files derived again from the weights and the records are the same")
        for sentence in sorted(set(verification.derived) - set(again)):
            print(visible(sentence, 200))
    unknown = verification.record.without_receipt
    if unknown:
        shown = ", ".join(visible(name, 80) for name in unknown[:8]) + ", …" * (len(unknown) > 8)
        print(
            f"{len(unknown)} files had no receipt in the run, so nothing shows what wrote them: {shown}"
        )
    if options.key:
        print(f"signed by the private key of {options.key}")
    elif verification.signed:
        print(f"signed; name the public key with --key to check the signature. {_UNPROVED}")
    else:
        print(f"not signed. {_UNPROVED}")
    return 0


def _replay_lines(verification: Verification) -> Iterator[str]:
    """Lines on the segments that were trained again, and how they were compared."""
    replayed = verification.replayed
    if replayed is None:
        return
    k, n = len(replayed.picked), replayed.segments
    for segment in replayed.picked:
        same = "same bits" if not segment.deviation else f"{segment.deviation:.3%} apart"
        result = "differs" if segment.problem else same
        yield f"steps {segment.first + 1} to {segment.last}, trained again: {result}"
    yield (
        f"{k} of {n} segments, picked by seed {verification.seed}: one forged segment is found with"
        f" probability {k}/{n}"
    )
    if replayed.differences:
        shown = visible("; ".join(replayed.differences), 400)
        yield f"Compared within a tolerance, since this machine computes with other bits: {shown}"


def print_receipt(receipt: ConsentReceipt) -> None:
    """Print what a receipt shows of its URL."""
    url = visible(receipt.url, 400)
    if receipt.rows is None:
        print(f"{url} is not in the ledger of {visible(receipt.release, 96)}")
        return
    try:
        rows = parse_json(receipt.rows)
        count, pairs = int(rows["count"]), [list(row.items()) for row in rows["rows"]]
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):  # the publisher can commit to any text
        print(f"{url} is in the ledger of {visible(receipt.release, 96)}, with unreadable rows:")
        print_pairs([("  rows", receipt.rows)])
        return
    print(f"{url} is in the ledger of {visible(receipt.release, 96)}, {count} times:")
    for row in pairs:
        print_pairs([(f"  {visible(name, 40)}", str(value)) for name, value in row])
