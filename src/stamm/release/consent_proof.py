"""Check of a consent receipt, with Python's integers and hashes alone (`consent_tree` defines what is proved)."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError, RunError
from stamm.base.schema import read_record, read_record_if_present
from stamm.release.layout import RECEIPTS
from stamm.release.p256 import proved_output
from stamm.release.records import ConsentReceipt, ReceiptsFile

EMPTY = bytes(32)
_BITS = 256
_UNREADABLE = "the receipt is damaged"


@dataclass(frozen=True, kw_only=True)
class LedgerProof:
    """Rows of a URL in the ledger, or their absence, and the proof.

    url     normalized
    proof   of the URL's place, in hexadecimal
    path    hashes beside the path from the root to the leaf; "" for an empty node
    rows    JSON text: number of the rows of the URL, and the first of them; None: the URL is not there
    other   place and content of the leaf that is there instead; None: none is
    """

    url: str
    proof: str
    path: tuple[str, ...]
    rows: str | None = None
    other: tuple[str, ...] | None = None


def check_proof(proof: LedgerProof, root: str, public_key: str) -> None:
    """Check a proof against the root and the public key of a release.

    Raises   DataError with what does not hold
    """
    try:
        output = proved_output(
            bytes.fromhex(public_key), proof.url.encode(), bytes.fromhex(proof.proof)
        )
        path = [bytes.fromhex(node) if node else EMPTY for node in proof.path]
        position, node = place_of(output), EMPTY
        if proof.rows is not None:
            node = leaf_of(position, content_of(salt_of(output), proof.rows))
        elif proof.other is not None:
            there, content = map(bytes.fromhex, proof.other)
            below = _BITS - len(path)
            if there == position or _number(there) >> below != _number(position) >> below:
                raise ValueError("the leaf that it shows does not lie on the path of the URL")
            node = leaf_of(there, content)
    except (ValueError, UnicodeEncodeError) as error:
        raise DataError(f"{_UNREADABLE}: {error}") from None
    for depth in reversed(range(len(path))):
        pair = (path[depth], node) if bit_of(position, depth) else (node, path[depth])
        node = hashlib.sha256(b"\1" + pair[0] + pair[1]).digest()
    if node.hex() != root:
        raise DataError(
            f"the receipt does not lead to the root {root[:16]}… of this release",
            fix="It was made for another release, or changed",
        )


def verify_receipt(path: Path, release: Path | None = None) -> ConsentReceipt:
    """The receipt in a file, when it holds.

    release   the release whose root it must lead to; None: the root that it names itself

    Raises   DataError with what does not hold
    """
    made = read_record(ConsentReceipt, path, fix="Ask for the receipt again")
    root, key = made.root, made.public_key
    if release is not None:
        facts = read_receipts(release)
        root, key = facts.root, facts.public_key
    names = [field.name for field in dataclasses.fields(LedgerProof)]
    check_proof(LedgerProof(**{name: getattr(made, name) for name in names}), root, key)
    return made


def read_receipts(release: Path) -> ReceiptsFile:
    """The root of the receipts of a release; raises RunError where it has none."""
    facts = read_record_if_present(ReceiptsFile, release / RECEIPTS)
    if facts is None:
        raise RunError(
            f"{release} has no {RECEIPTS}",
            fix="Only a release that was written with receipts=FOLDER has receipts",
        )
    return facts


def place_of(output: bytes) -> bytes:
    """Place of a URL, from the output of the random function."""
    return hashlib.sha256(b"stamm ledger index" + output).digest()


def salt_of(output: bytes) -> bytes:
    """Salt of its rows, from the same output."""
    return hashlib.sha256(b"stamm ledger salt" + output).digest()


def content_of(salt: bytes, rows: str) -> bytes:
    """Hash of rows with their salt."""
    return hashlib.sha256(b"\2" + salt + rows.encode()).digest()


def leaf_of(place: bytes, content: bytes) -> bytes:
    """Hash of a leaf."""
    return hashlib.sha256(b"\0" + place + content).digest()


def _number(place: bytes) -> int:
    return int.from_bytes(place, "big")


def bit_of(place: bytes, depth: int) -> int:
    """Bit of a place, from the most significant: 1 leads to the right."""
    return place[depth // 8] >> 7 - depth % 8 & 1
