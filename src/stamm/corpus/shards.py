"""One token shard on disk: `.bin` and `.idx` in the layout that Megatron reads.

`.bin`  token ids, little endian, uint16 or int32, documents one after another
`.idx`  b"MMIDIDX\\0\\0", u64 version 1, u8 type code (8 uint16, 4 int32), u64 sequences n, u64 d,
        int32 lengths[n], int64 byte offsets[n], int64 document borders[d], where d = n + 1 and
        the borders count sequences: here every document is one sequence, so 0, 1, .., n

Source   NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py, as described in
         swiss-ai/pretrain-code.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Container, Iterable
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import atomic
from stamm.base.receipts import check_file

MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
HEAD_BYTES = len(MAGIC) + _HEAD.size
_TYPES: dict[int, np.dtype[np.uint16] | np.dtype[np.int32]] = {
    8: np.dtype("<u2"),
    4: np.dtype("<i4"),
}
_FIX = "Delete the packed corpus and pack again"


def type_code(vocabulary: int) -> int:
    """The code of the smallest type that holds every id: 8 (uint16) or 4 (int32)."""
    return 8 if vocabulary <= 2**16 else 4


def token_type(code: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """The numpy type of a code."""
    return _TYPES[code]


def write_shard(path: Path, documents: Iterable[NDArray[np.integer[Any]]], code: int) -> None:
    """Write `path`.bin and `path`.idx, the index last: a shard with an index is complete."""
    kind = token_type(code)
    lengths = array("i")
    with atomic(path.with_suffix(".bin")) as temporary, temporary.open("wb") as opened:
        for tokens in documents:
            opened.write(tokens.astype(kind).tobytes())
            lengths.append(len(tokens))
    sizes = np.array(lengths, dtype=np.int64) * kind.itemsize
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[: len(lengths)]
    with atomic(path.with_suffix(".idx")) as temporary, temporary.open("wb") as opened:
        opened.write(MAGIC + _HEAD.pack(1, code, len(lengths), len(lengths) + 1))
        opened.write(np.array(lengths, dtype="<i4").tobytes())
        opened.write(offsets.astype("<i8").tobytes())
        opened.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


@dataclass(frozen=True)
class TokenShard:
    """A shard opened for reading.

    tokens    memory-mapped ids
    lengths   tokens of each document
    """

    tokens: NDArray[np.uint16] | NDArray[np.int32]
    lengths: NDArray[np.int32]


def check_uncut(tokens: NDArray[Any], name: str) -> None:
    """Check that the file that `tokens` are mapped from has not been truncated since.

    Reading beyond its end kills the process with SIGBUS.

    Raises   DataError when it was truncated.
    """
    file = tokens.base
    if isinstance(file, mmap) and file.size() < tokens.nbytes:
        raise DataError(
            f"{name} was truncated while it was read: {file.size()} of {tokens.nbytes} bytes are left",
            fix="Put it back, and run the same command again",
        )


def read_head(
    index: Path, raw: bytes | NDArray[np.uint8], codes: Container[int], fix: str
) -> tuple[int, int, int]:
    """Type code, sequences and borders of an index, after a check of its size.

    raw     its bytes
    codes   of the types that are read

    Raises   DataError when it is of another format, or truncated
    """
    start = bytes(raw[:HEAD_BYTES])
    if not start.startswith(MAGIC):
        raise DataError(f"{index} is not a Megatron index: it begins with {start[:9]!r}", fix=fix)
    if len(start) < HEAD_BYTES:
        raise DataError(f"{index} ends inside its head, after {len(start)} bytes", fix=fix)
    version, code, sequences, borders = _HEAD.unpack(start[len(MAGIC) :])
    if version != 1 or code not in codes:
        raise DataError(f"{index} has version {version} and type {code}", fix=fix)
    expected = HEAD_BYTES + 12 * sequences + 8 * borders
    if len(raw) == expected + sequences and sequences:
        raise DataError(
            f"{index} has a mode for each sequence: it contains more than text",
            fix="Write its text sequences to a file of their own",
        )
    if len(raw) != expected:
        raise DataError(f"{index} has {len(raw)} bytes, its header declares {expected}", fix=fix)
    return code, sequences, borders


def open_shard(path: Path, *, checked: bool = True) -> TokenShard:
    """The shard `path`.bin with `path`.idx.

    checked   whether the tokens are compared with their receipt now; else the caller does it

    Raises   DataError when a file is missing or invalid, or their sizes differ.
    """
    index, data = path.with_suffix(".idx"), path.with_suffix(".bin")
    for file in (index, data) if checked else (index,):
        check_file(file)
    try:
        raw = index.read_bytes()
        size = data.stat().st_size
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} does not exist", fix=_FIX) from None
    code, sequences, _ = read_head(index, raw, _TYPES, _FIX)
    lengths = np.frombuffer(raw, dtype="<i4", count=sequences, offset=HEAD_BYTES)
    kind = token_type(code)
    tokens = int(lengths.sum(dtype=np.int64))
    if size != tokens * kind.itemsize:
        raise DataError(
            f"{data} has {size} bytes, its index declares {tokens * kind.itemsize}", fix=_FIX
        )
    mapped = np.memmap(data, dtype=kind, mode="r") if tokens else np.empty(0, dtype=kind)
    return TokenShard(tokens=mapped, lengths=lengths)
