"""Megatron token files (.bin and .idx), read as one stream like a packed corpus.

`.bin`  token ids, little endian, sequences one after another
`.idx`  as in shards.py, with any of eight types, and documents of several sequences: the borders
        are the numbers of the first sequence of each document, and the number of sequences

Documents are defined by the index. The range of ids and the end token come from the tokenizer; the
files contain neither, so every token is checked.

Source   NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_file, sha256_value
from stamm.corpus.shards import HEAD_BYTES, check_uncut, read_head
from stamm.corpus.shuffle import Proof

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

_CHUNK = 2**20
_FIX = "Write it again, as one .bin with its .idx"


@dataclass(frozen=True)
class MegatronFile:
    """One .bin with its .idx.

    stem         its path without ending
    num_tokens   tokens of all its documents
    borders      the first token of each document that has any, and the end
    """

    stem: str
    num_tokens: int
    borders: NDArray[np.int64]
    _tokens: NDArray[Any]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1.

        Shapes   [stop - start], int64.
        Raises   DataError when the range leaves the file, or has a value that is not an id.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(
                f"tokens {start} to {stop} are not in {self.stem}, which has {self.num_tokens}"
            )
        check_uncut(self._tokens, f"{self.stem}.bin")
        stored = np.asarray(self._tokens[start:stop])
        if stored.dtype.kind == "f":
            # A value beyond 2^62, or NaN, has no int64 to compare it with.
            whole = (np.abs(stored) < 2.0**62) & (stored == np.floor(stored))
            stored = np.where(whole, stored, -1.0)
        ids = stored.astype(np.int64)
        if ids.size and ids.min() < 0:
            at = start + int(np.argmax(ids < 0))
            raise DataError(
                f"{self.stem} has no valid id at token {at}: {self._tokens[at]}", fix=_FIX
            )
        return ids

    def pieces(self) -> Iterator[tuple[int, NDArray[np.int64], memoryview]]:
        """All tokens in pieces: position of the first, ids, stored bytes."""
        for start in range(0, self.num_tokens, _CHUNK):
            stop = min(start + _CHUNK, self.num_tokens)
            yield start, self.read(start, stop), self._tokens[start:stop].data


class MegatronTokens:
    """Megatron files in a row, with the tokenizer that made them (a `TokenStream`).

    files        in their order
    vocabulary   number of ids of the tokenizer
    end_id       the id that ends each document; None: none, or unknown
    """

    def __init__(self, files: Sequence[MegatronFile], vocabulary: int, end_id: int | None) -> None:
        self._files = tuple(files)
        self._firsts = [0, *itertools.accumulate(file.num_tokens for file in files)]
        self.end_id = end_id
        self.num_tokens = self._firsts[-1]
        self.stages = ((0, self.num_tokens),)
        self.vocabulary = vocabulary

    @classmethod
    def open(
        cls, paths: Sequence[Path], tokenizer: Path, end_token: str | None = None
    ) -> MegatronTokens:
        """Open the files at `paths`, made with the tokenizer.json `tokenizer` or the one in that folder.

        end_token   token that ends each document, as the tokenizer spells it
        Raises      DataError when a file is missing, broken or without tokens, or the tokenizer is
                    invalid or has no such token. `examine` checks the tokens.
        """
        words = _words(tokenizer)
        if end_token is not None and end_token not in words:
            raise DataError(
                f"{tokenizer} has no token {end_token!r}",
                where="foreign.end_token",
                fix="Name the token that ends each document, or none",
            )
        files = [read_megatron(path) for path in paths]
        for file in files:
            if not file.num_tokens:
                raise DataError(
                    f"{file.stem}.bin contains no token",
                    where="foreign.prefixes",
                    fix="Leave it out",
                )
        end_id = None if end_token is None else words[end_token]
        return cls(files, max(words.values(), default=-1) + 1, end_id)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1, across files.

        Shapes   [stop - start], int64.
        Raises   DataError when the range leaves the stream, or has a value that is not an id.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(
                f"tokens {start} to {stop} are not in the files, which have {self.num_tokens}"
            )
        pieces = [np.empty(0, dtype=np.int64)]
        number = bisect.bisect_right(self._firsts, start) - 1
        while start < stop:
            first, end = self._firsts[number], min(stop, self._firsts[number + 1])
            pieces.append(self._files[number].read(start - first, end - first))
            start, number = end, number + 1
        return np.concatenate(pieces)

    def document_starts(self) -> NDArray[np.int64]:
        """The first token of each document that has any."""
        placed = zip(self._firsts[:-1], self._files, strict=True)
        return np.concatenate([first + file.borders[:-1] for first, file in placed])

    @property
    def num_files(self) -> int:
        """Number of pairs of a .bin and an .idx."""
        return len(self._files)

    def examine(self, files: Iterable[int]) -> dict[int, Any]:
        """Hashes and counts; raises DataError for ids or end tokens of another tokenizer."""
        return {number: self._examined(self._files[number]) for number in files}

    def proof(self, seen: Mapping[int, Any]) -> Proof:
        """The identity of all files."""
        files = [seen[number] for number in range(self.num_files)]
        return Proof(
            sha256=sha256_value([[file["idx_sha256"], file["bin_sha256"]] for file in files]),
            facts={"tokens": self.num_tokens, "files": files},
            remark="" if self.end_id is None else _remark(files),
        )

    def _examined(self, file: MegatronFile) -> dict[str, Any]:
        """Hashes and counts of a file."""
        digest, largest, ends, ended = hashlib.sha256(), -1, 0, 0
        stops = file.borders[1:]
        for start, ids, stored in file.pieces():
            digest.update(stored)
            largest = max(largest, int(ids.max()))
            if largest >= self.vocabulary:
                raise DataError(
                    f"{file.stem}.bin has id {largest} at token {start + int(ids.argmax())}, its "
                    f"tokenizer has {self.vocabulary} ids",
                    where="foreign.tokenizer",
                    fix="Name the tokenizer that the file was made with",
                )
            if self.end_id is not None:
                ending_documents = slice(
                    *np.searchsorted(stops, [start, start + len(ids)], side="right")
                )
                ends += int(np.count_nonzero(ids == self.end_id))
                ended += int(
                    np.count_nonzero(ids[stops[ending_documents] - 1 - start] == self.end_id)
                )
        facts = {
            "idx_sha256": sha256_file(Path(f"{file.stem}.idx")),
            "bin_sha256": digest.hexdigest(),
            "tokens": file.num_tokens,
            "documents": len(stops),
            "largest_id": largest,
        }
        if self.end_id is None:
            return facts
        if not ended:
            raise DataError(
                f"no document of {file.stem}.bin ends with the end token, id {self.end_id}",
                where="foreign.end_token",
                fix="Name the token that ends each document, or none; or the right tokenizer",
            )
        return facts | {"ended_documents": ended, "end_tokens_inside": ends - ended}


def read_megatron(path: Path) -> MegatronFile:
    """Read `path`.bin with `path`.idx of any Megatron version.

    path    with or without one of the two endings
    Edge    documents without tokens are left out: no window can begin in one.
    Raises  DataError when a file is missing or invalid, has images besides text, or the two
            disagree.
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
    code, sequences, borders = read_head(index, raw, TYPES, _FIX)
    kind = TYPES[code]
    at = HEAD_BYTES
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
            f"{data} has {size} bytes, its index declares {tokens * kind.itemsize}", fix=_FIX
        )
    rising = borders > 0 and first[0] == 0 and first[-1] == sequences
    if not rising or (np.diff(first) < 0).any():
        raise DataError(
            f"the document borders of {index} do not run from sequence 0 to {sequences}", fix=_FIX
        )
    return MegatronFile(
        stem=str(stem),
        num_tokens=tokens,
        borders=np.unique(starts[first]) if tokens else np.zeros(1, dtype=np.int64),
        _tokens=np.memmap(data, dtype=kind, mode="r") if tokens else np.empty(0, dtype=kind),
    )


def _remark(files: Sequence[Mapping[str, Any]]) -> str:
    """Differences between the end tokens and the borders of the index."""
    documents, ended, inside = (
        sum(file[name] for file in files)
        for name in ("documents", "ended_documents", "end_tokens_inside")
    )
    remarks = []
    if ended < documents:
        remarks.append(f"{documents - ended:,} of {documents:,} documents have no end token")
    if inside:
        remarks.append(f"{inside:,} end tokens are inside documents, which they do not split")
    return "; ".join(remarks)


def tokenizer_file(path: Path) -> Path:
    """The file `path`, or the tokenizer.json in the folder `path`."""
    return path / "tokenizer.json" if path.is_dir() else path


def _words(path: Path) -> dict[str, int]:
    """The vocabulary of a tokenizer.json: ids by token."""
    file = tokenizer_file(path)
    try:
        plain = read_json(file)
        model = plain["model"]["vocab"]
        # Unigram models list their tokens in the order of the ids; all others name them.
        words = model if isinstance(model, dict) else {word: i for i, (word, _) in enumerate(model)}
        words = {**words, **{token["content"]: token["id"] for token in plain["added_tokens"]}}
        if not words or any(type(number) is not int for number in words.values()):
            raise TypeError("ids are not integers")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file} is not a tokenizer.json of the tokenizers library: {error!r}",
            where="foreign.tokenizer",
            fix="Name the file, or its folder",
        ) from None
    return words
