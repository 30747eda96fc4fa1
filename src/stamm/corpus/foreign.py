"""Token files that others wrote for Megatron, read as one stream, as a packed corpus is.

`.bin`  token ids, little endian, sequences one after another
`.idx`  as in shards.py, with any of eight types, and documents of several sequences: the borders
        number the sequence that each document begins with, and end with the number of sequences

What nobody wrote down is not made up: language, source and licence of the documents are empty.

Source   NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.corpus.pack import SIDECAR_SCHEMA
from stamm.corpus.shards import HEAD, MAGIC

TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
"""The type of the ids by the code in the head."""

_CHUNK = 2**22
_FIX = "Write it again, as one .bin with its .idx"


@dataclass(frozen=True)
class ForeignSplit:
    """A file of somebody else's, read as `PackedSplit` is.

    split       its path, for messages
    num_tokens  tokens of all its documents
    stages      one stage: the whole file
    """

    split: str
    num_tokens: int
    stages: tuple[tuple[int, int], ...]
    _tokens: NDArray[Any]
    _borders: NDArray[np.int64]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1.

        Shapes   [stop - start], int64.
        Raises   DataError when the range leaves the file, or holds a number that is no id.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(
                f"tokens {start} to {stop} are not in {self.split}, which has {self.num_tokens}"
            )
        stored = np.asarray(self._tokens[start:stop])
        if stored.dtype.kind == "f":
            # A number beyond 2^62, or none at all, has no int64 that it could be compared with.
            stored = np.where(np.abs(stored) < 2.0**62, stored, -1.0)
        ids = stored.astype(np.int64)
        wrong = np.flatnonzero((ids < 0) | (ids != stored))
        if wrong.size:
            at = start + int(wrong[0])
            raise DataError(f"{self.split} holds no id at token {at}: {self._tokens[at]}", fix=_FIX)
        return ids

    def largest_id(self) -> int:
        """The largest id of the file, -1 without any: what a model's vocabulary must exceed.

        Edge     reads every token once, so that whatever is no id is found before training.
        Raises   DataError as `read` does.
        """
        largest = -1
        for start in range(0, self.num_tokens, _CHUNK):
            ids = self.read(start, min(start + _CHUNK, self.num_tokens))
            largest = max(largest, int(ids.max()))
        return largest

    def documents(self) -> pa.Table:
        """One row per document, in order: SIDECAR_SCHEMA, with what is not known left empty."""
        starts, stops = self._borders[:-1], self._borders[1:]
        number = len(starts)
        name = Path(self.split).name
        columns: dict[str, Any] = {
            "document_id": pa.array([f"{name}:{i}" for i in range(number)], pa.string()),
            "stage": np.zeros(number, dtype=np.int64),
            "occurrence": np.zeros(number, dtype=np.int64),
            "start": starts,
            "stop": stops,
            "probe_id": pa.nulls(number, pa.string()),
            "bytes": pa.nulls(number, pa.int64()),
        }
        empty = pa.repeat(pa.scalar(""), number)
        return pa.table(
            {field.name: columns.get(field.name, empty) for field in SIDECAR_SCHEMA},
            schema=SIDECAR_SCHEMA,
        )


def read_foreign(path: Path) -> ForeignSplit:
    """The tokens of `path`.bin with `path`.idx, whoever wrote them.

    path    with or without one of the two endings
    Edge    documents without tokens are left out: no window can begin in one.
    Raises  DataError when a file is missing, is no such file, holds pictures beside text, or the
            two disagree.
    """
    stem = path.with_suffix("") if path.suffix in (".idx", ".bin") else path
    index, data = (stem.with_name(stem.name + ending) for ending in (".idx", ".bin"))
    try:
        raw = np.memmap(index, dtype=np.uint8, mode="r")
        size = data.stat().st_size
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} does not exist", fix=_FIX) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{index} cannot be read: {error}", fix=_FIX) from None
    code, sequences, borders = _head(index, raw)
    kind = TYPES[code]
    at = len(MAGIC) + HEAD.size
    lengths = raw[at : at + 4 * sequences].view("<i4").astype(np.int64)
    offsets = raw[at + 4 * sequences : at + 12 * sequences].view("<i8").astype(np.int64)
    first = raw[at + 12 * sequences : at + 12 * sequences + 8 * borders].view("<i8")
    starts = np.zeros(sequences + 1, dtype=np.int64)
    if (lengths < 0).any():
        raise DataError(f"{index} has a sequence of {lengths.min()} tokens", fix=_FIX)
    np.cumsum(lengths, out=starts[1:])
    tokens = int(starts[-1])
    if not np.array_equal(offsets, starts[:-1] * kind.itemsize):
        raise DataError(f"the sequences of {index} do not follow one another", fix=_FIX)
    if size != tokens * kind.itemsize:
        raise DataError(
            f"{data} has {size} bytes, its index says {tokens * kind.itemsize}", fix=_FIX
        )
    rising = borders > 0 and first[0] == 0 and first[-1] == sequences
    if not rising or (np.diff(first) < 0).any():
        raise DataError(
            f"the documents of {index} do not lead from sequence 0 to {sequences}", fix=_FIX
        )
    return ForeignSplit(
        split=str(stem),
        num_tokens=tokens,
        stages=((0, tokens),),
        _tokens=np.memmap(data, dtype=kind, mode="r") if tokens else np.empty(0, dtype=kind),
        _borders=np.unique(starts[first]) if tokens else np.zeros(1, dtype=np.int64),
    )


def _head(index: Path, raw: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Type code, sequences and borders, once the size of the index is what they say."""
    head = len(MAGIC) + HEAD.size
    start = raw[:head].tobytes()
    if not start.startswith(MAGIC):
        raise DataError(
            f"{index} is no index of Megatron's: it begins with {start[:9]!r}", fix=_FIX
        )
    if len(start) < head:
        raise DataError(f"{index} ends inside its head, after {len(start)} bytes", fix=_FIX)
    version, code, sequences, borders = HEAD.unpack(start[len(MAGIC) :])
    if version != 1 or code not in TYPES:
        raise DataError(f"{index} has version {version} and type {code}", fix=_FIX)
    expected = head + 12 * sequences + 8 * borders
    if len(raw) == expected + sequences and sequences:
        raise DataError(
            f"{index} tells a mode of each sequence: it holds more than text",
            fix="Write its text sequences to a file of their own",
        )
    if len(raw) != expected:
        raise DataError(f"{index} has {len(raw)} bytes, its head says {expected}", fix=_FIX)
    return code, sequences, borders
