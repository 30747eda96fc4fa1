"""Check of a consent receipt, with Python's integers and hashes alone (`consent_tree` defines what is proved)."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError, RunError
from stamm.base.schema import read_record, read_record_if_present
from stamm.release.layout import RECEIPTS, RECORD
from stamm.release.p256 import proved_output
from stamm.release.records import ConsentReceipt, ReceiptsFile, ReleaseFile

EMPTY = bytes(32)
_BITS = 256
_UNREADABLE = "the receipt is damaged"
_URL, _ROWS = re.compile("[!-~]+"), re.compile("[ -~]+")
_HASH, _NODE = re.compile("[0-9a-f]{64}"), re.compile("([0-9a-f]{64})?")
_PROOF = re.compile("[0-9a-f]{162}")


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

    Every part has one spelling and a fixed length: of parts of other lengths, one hash would have several
    readings, and a leaf could be shown as that of another URL.

    Raises   DataError with what does not hold
    """
    hashes = proof.other or ()
    if (
        not (_URL.fullmatch(proof.url) and _PROOF.fullmatch(proof.proof))
        or len(proof.path) > _BITS
        or not all(map(_NODE.fullmatch, proof.path))
        or not (proof.rows is None or (_ROWS.fullmatch(proof.rows) and proof.other is None))
        or not (proof.other is None or len(hashes) == 2)
        or not all(map(_HASH.fullmatch, hashes))
    ):
        raise DataError(f"{_UNREADABLE}: a field has another form than in a receipt")
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
    except ValueError as error:
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

    release   the release that it must be of: its root, name and weights; None: the root that it names
              itself leads to it

    Raises   DataError with what does not hold
    """
    made = read_record(ConsentReceipt, path, fix="Ask for the receipt again")
    if release is not None:
        facts, released = read_receipts(release), read_record(ReleaseFile, release / RECORD)
        for name, stated, true in (
            ("root", made.root, facts.root),
            ("public key", made.public_key, facts.public_key),
            ("name", made.release, released.name),
            ("SHA-256 of the weights", made.model_sha256, released.model_sha256),
        ):
            if stated != true:
                raise DataError(
                    f"the receipt is not of this release: {name} {stated[:64]}, and {true} of the release",
                    fix="It was made for another release, or changed",
                )
    names = [field.name for field in dataclasses.fields(LedgerProof)]
    proof = LedgerProof(**{name: getattr(made, name) for name in names})
    check_proof(proof, made.root, made.public_key)
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
