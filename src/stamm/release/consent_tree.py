"""A Merkle tree over the ledger by URL, of which single rows, or their absence, can be proved.

Each URL of the ledger has one leaf, at the place that a verifiable random function gives it. The tree
is a binary trie over the bits of the places: a node with several leaves below it has two children, a
node with one leaf is that leaf, and one without is 32 zero bytes. So a root and a URL have one answer
at most: to show another, two inputs of SHA-256 with equal hashes would be needed.

    place   = SHA-256("stamm ledger index" + output)     output = VRF(secret key, URL)
    salt    = SHA-256("stamm ledger salt" + output)
    content = SHA-256(2 + salt + rows)                    rows: JSON text
    leaf    = SHA-256(0 + place + content)
    node    = SHA-256(1 + left + right)

A proof shows hashes, and at most the place and the salted content of one other URL. Neither can be
compared with guessed URLs without the secret key.

Writes   leaves.bin (place and content of each leaf, sorted), nodes.bin (the nodes of the upper levels),
         rows.parquet (the rows of each leaf)
Source   RFC 6962, 2.1 (different first bytes of leaves and nodes); Melara et al. 2015, CONIKS (places
         by a verifiable random function)
Checked  tests/unit/release/test_consent_receipt.py
"""

from __future__ import annotations

import hashlib
import itertools
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import write_bytes
from stamm.corpus.deletions import normal_address, normal_fragment, spelled
from stamm.corpus.query import opened
from stamm.corpus.tables import RowGroups, columns, write_rows
from stamm.release.consent_proof import (
    EMPTY,
    LedgerProof,
    bit_of,
    content_of,
    leaf_of,
    place_of,
    salt_of,
)
from stamm.release.vrf import SecretKey

_LEAVES, _NODES, _ROWS = "leaves.bin", "nodes.bin", "rows.parquet"
_SHOWN = ("document_id", "decision", "reason", "consent", "rule", "agent", "robots_read", "licence", "split")  # fmt: skip
_LONGEST_VALUE, _LONGEST_ROWS = 160, 1_200
_MOST_LEVELS = 16
_MEMORY_GIB = 1.0


def written_url(url: str) -> str:
    """A URL as a leaf has it: normalized, with the fragment that names a file of a repository; ASCII without
    blanks, whatever the ledger has for a URL."""
    return spelled(normal_address(url)) + normal_fragment(url)


def build_tree(ledger: Iterable[Mapping[str, Any]], key: SecretKey, folder: Path) -> dict[str, Any]:
    """Write the tree of the ledger's rows to `folder`: root, public_key, and counts.

    Returns  root and public_key in hexadecimal; urls, rows, and rows_without_url, which have no leaf
    """
    unsorted = folder / "unsorted.parquet"
    counts = {"rows": 0, "rows_without_url": 0}

    def placed() -> Iterator[dict[str, str]]:
        known = ("", b"")
        for row in ledger:
            counts["rows"] += 1
            if not row["url"]:
                counts["rows_without_url"] += 1
                continue
            url = written_url(row["url"])
            if url != known[0]:
                known = (url, key.output(url.encode()))
            shown = {name: _shortened(str(row[name])) for name in _SHOWN if row.get(name)}
            yield {
                "place": place_of(known[1]).hex(),
                "salt": salt_of(known[1]).hex(),
                "row": json.dumps(shown, ensure_ascii=True),
            }

    write_rows(unsorted, columns("place salt row"), placed())
    leaves = bytearray()
    with opened(folder, _MEMORY_GIB, 1) as query:
        query.view("unsorted", [unsorted])
        rows = query.stream("select place, salt, row from unsorted order by place, row")

        def grouped() -> Iterator[dict[str, str]]:
            for (position, salt), group in itertools.groupby(rows, key=lambda row: row[:2]):
                text = _rows_text([row for _, _, row in group])
                leaves.extend(bytes.fromhex(position) + content_of(bytes.fromhex(salt), text))
                yield {"rows": text}

        count = write_rows(folder / _ROWS, columns("rows"), grouped())
    unsorted.unlink()
    write_bytes(folder / _LEAVES, bytes(leaves))
    levels = min(max(count.bit_length() - 6, 0), _MOST_LEVELS)
    nodes = bytearray(32 << (levels + 1))
    root = _Leaves(np.frombuffer(bytes(leaves), np.uint8)).node(0, count, 0, (levels, nodes))
    write_bytes(folder / _NODES, bytes(nodes))
    return {"root": root.hex(), "public_key": key.public.hex(), "urls": count, **counts}


def prove(folder: Path, key: SecretKey, url: str) -> LedgerProof:
    """The proof that the ledger holds a URL, or that it does not.

    Raises   DataError when the tree in `folder` cannot be read
    """
    text = written_url(url)
    output = key.output(text.encode())
    position = place_of(output)
    try:
        leaves = _Leaves(
            np.memmap(folder / _LEAVES, np.uint8, "r")
            if (folder / _LEAVES).stat().st_size
            else np.empty(0, np.uint8)
        )
        nodes = np.memmap(folder / _NODES, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not the tree of a ledger: {error}") from None
    levels = (len(nodes) // 32).bit_length() - 2
    low, high, depth, at, path = 0, leaves.count, 0, 1, []
    while high - low > 1:
        middle = leaves.split(low, high, depth)
        bit = bit_of(position, depth)
        beside = (low, middle) if bit else (middle, high)
        depth, at = depth + 1, 2 * at + bit
        stored = nodes[32 * (at ^ 1) : 32 * (at ^ 1) + 32].tobytes() if depth <= levels else b""
        path.append(stored or leaves.node(*beside, depth))
        low, high = (middle, high) if bit else (low, middle)
    rows, other = None, None
    if high > low:
        there, content = leaves.leaf(low)
        if there == position:
            rows = str(RowGroups(folder / _ROWS, ["rows"]).row(low)["rows"])
        else:
            other = (there.hex(), content.hex())
    shown = tuple("" if node == EMPTY else node.hex() for node in path)
    proof = key.proof(text.encode()).hex()
    return LedgerProof(url=text, proof=proof, path=shown, rows=rows, other=other)


class _Leaves:
    """The sorted leaves: place and content, 64 bytes each."""

    def __init__(self, octets: NDArray[np.uint8]) -> None:
        self._octets = octets
        self.count = len(octets) // 64

    def leaf(self, number: int) -> tuple[bytes, bytes]:
        whole = self._octets[64 * number : 64 * number + 64].tobytes()
        return whole[:32], whole[32:]

    def split(self, low: int, high: int, depth: int) -> int:
        """The first of the leaves low .. high - 1 whose bit `depth` is set."""
        byte, shift = depth // 8, 7 - depth % 8
        return bisect_left(
            range(high), 1, low, high, key=lambda n: int(self._octets[64 * n + byte]) >> shift & 1
        )

    def node(
        self,
        low: int,
        high: int,
        depth: int,
        store: tuple[int, bytearray] | None = None,
        at: int = 1,
    ) -> bytes:
        """The node over the leaves low .. high - 1, which agree in their first `depth` bits.

        store   levels below the root to store, and where: node `at` has the children 2 at and 2 at + 1
        """
        if high == low:
            node = EMPTY
        elif high - low == 1:
            node = leaf_of(*self.leaf(low))
        else:
            middle = self.split(low, high, depth)
            left = self.node(low, middle, depth + 1, store, 2 * at)
            right = self.node(middle, high, depth + 1, store, 2 * at + 1)
            node = hashlib.sha256(b"\1" + left + right).digest()
        if store is not None and depth <= store[0]:
            store[1][32 * at : 32 * at + 32] = node
        return node


def _shortened(value: str) -> str:
    """A value that has at most _LONGEST_VALUE characters in JSON, where others than ASCII take 6 or 12."""
    value = value[:_LONGEST_VALUE]
    while len(json.dumps(value)) > _LONGEST_VALUE + 2:
        value = value[:-1]
    return value


def _rows_text(rows: list[str]) -> str:
    """The rows of a URL as JSON: their number, and as many of the first as fit."""
    fitting: list[str] = []
    for row in rows:
        if fitting and sum(map(len, (*fitting, row))) > _LONGEST_ROWS:
            break
        fitting.append(row)
    return f'{{"count": {len(rows)}, "rows": [{", ".join(fitting)}]}}'
