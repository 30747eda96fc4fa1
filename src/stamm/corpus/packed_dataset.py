"""Reader of a packed corpus: token shards in a fixed order, and the document of each token."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.base.receipts import check_file
from stamm.base.schema import read_record
from stamm.corpus.records import PackManifest, PackSplit
from stamm.corpus.shards import TokenShard, check_uncut, open_shard
from stamm.corpus.shuffle import Proof
from stamm.corpus.tables import columns, read_table
from stamm.tokenizer.special_tokens import END_ID

MANIFEST = "manifest.json"
_PACK_AGAIN = "Delete the packed corpus and pack again"
SIDECAR_SCHEMA = columns(
    "document_id language source licence url probe_id stage:int64 occurrence:int64 start:int64 "
    "stop:int64 bytes:int64"
)
"""One row per packed document: tokens start .. stop - 1 of its split, and bytes of its text.

stage, occurrence   stage of the mixture, and number of the occurrence from 0
"""


class PackedSplit:
    """One split of a packed corpus, read as a single stream of tokens (a `TokenStream`).

    num_tokens   tokens of all its shards
    vocabulary   number of ids of its tokenizer
    stages       first token and stop of each stage, in order; one stage if none is configured
    end_id       the token that ends each document
    """

    end_id: int | None = END_ID

    def __init__(
        self, folder: Path, split: str, entry: PackSplit, vocabulary: int, examined: bool
    ) -> None:
        self._folder = folder
        self._entries = entry.shards
        self._shards: list[TokenShard] = []
        self._unchecked = set() if examined else set(range(len(self._entries)))
        for shard in self._entries:
            opened = open_shard(folder / shard.name, checked=False)
            if len(opened.tokens) != shard.tokens:
                raise DataError(
                    f"{folder / shard.name} holds {len(opened.tokens)} tokens, "
                    f"the manifest declares {shard.tokens}",
                    fix=_PACK_AGAIN,
                )
            self._shards.append(opened)
        self.split = split
        self.vocabulary = vocabulary
        self._borders = np.cumsum([0, *(len(s.tokens) for s in self._shards)])
        self.num_tokens = int(self._borders[-1])
        sizes = [stage.tokens for stage in entry.stages] or [entry.tokens]
        stops = np.cumsum([0, *sizes]).tolist()
        if stops[-1] != self.num_tokens:
            raise DataError(
                f"{folder / MANIFEST} declares {stops[-1]} tokens, the shards of {split} "
                f"contain {self.num_tokens}",
                fix=_PACK_AGAIN,
            )
        self.stages: tuple[tuple[int, int], ...] = tuple(itertools.pairwise(stops))

    @classmethod
    def open(cls, folder: Path, split: str, *, examined: bool = False) -> PackedSplit:
        """The split "train" or "held_out" of the packed corpus in `folder`.

        examined   whether the caller compares all shards with the manifest (`examine`), before or while
                   it reads; else a shard is compared with its receipt when it is first read

        Raises   DataError when it is not there, was written by another version, or a shard is
                 truncated.
        """
        manifest, entry = read_split(folder, split)
        if manifest.vocabulary < 1:
            raise DataError(
                f"{folder / MANIFEST} does not say how many ids there are", fix=_PACK_AGAIN
            )
        return cls(folder, split, entry, manifest.vocabulary, examined)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1 of the split, across shards.

        Shapes   [stop - start], int64.
        Raises   DataError when the range leaves the split, or has a value that is not an id.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(
                f"tokens {start} to {stop} are not in {self.split}, which has {self.num_tokens}"
            )
        tokens = np.empty(stop - start, dtype=np.int64)
        at = start
        shard = int(np.searchsorted(self._borders, start, side="right")) - 1
        while at < stop:
            first, last = int(self._borders[shard]), int(self._borders[shard + 1])
            end = min(stop, last)
            name = f"{self._folder / self._entries[shard].name}.bin"
            if shard in self._unchecked:
                check_file(Path(name))
                self._unchecked.discard(shard)
            check_uncut(self._shards[shard].tokens, name)
            ids = self._shards[shard].tokens[at - first : end - first]
            if len(ids) and (largest := int(ids.max())) >= self.vocabulary:
                self.examine([shard])  # damage is reported as such
                raise DataError(
                    f"{name} has id {largest}, its tokenizer has {self.vocabulary} ids",
                    fix=_PACK_AGAIN,
                )
            tokens[at - start : end - start] = ids
            at, shard = end, shard + 1
        return tokens

    def documents(self) -> pa.Table:
        """One row per packed document, in order: SIDECAR_SCHEMA."""
        return self._sidecars(SIDECAR_SCHEMA.names)

    def document_starts(self) -> NDArray[np.int64]:
        """The first token of each packed document."""
        starts: NDArray[np.int64] = self._sidecars(["start"]).column("start").to_numpy()
        return starts

    def sidecars(self, columns: list[str]) -> Iterator[pa.Table]:
        """The rows of `documents`, a shard's at a time, and no more columns than are asked for."""
        for entry in self._entries:
            yield read_table(self._folder / f"{entry.name}.documents.parquet", columns)

    def _sidecars(self, columns: list[str]) -> pa.Table:
        if not self._entries:
            return SIDECAR_SCHEMA.empty_table().select(columns)
        return pa.concat_tables(list(self.sidecars(columns)))

    @property
    def num_bytes(self) -> int:
        """Size of the token files of the split."""
        return sum(shard.tokens.nbytes for shard in self._shards)

    @property
    def num_files(self) -> int:
        """Shards of the split."""
        return len(self._entries)

    def examine(self, files: Iterable[int]) -> dict[int, Any]:
        """Compare the files of these shards with their hashes in the manifest.

        Raises   DataError naming the first file that differs.
        """
        seen: dict[int, Any] = {}
        for number in files:
            entry = self._entries[number]
            for suffix, expected in entry.sha256.items():
                path = self._folder / f"{entry.name}{suffix}"
                if not path.is_file():
                    raise DataError(f"{path} does not exist", fix=_PACK_AGAIN)
                if sha256_file(path) != expected:
                    raise DataError(
                        f"{path} was altered: its hash is not the one in the manifest",
                        fix=_PACK_AGAIN,
                    )
            seen[number] = None
        return seen

    def proof(self, seen: Mapping[int, Any]) -> Proof:
        """The hash of the manifest, which names those of all files."""
        return Proof(sha256=sha256_file(self._folder / MANIFEST))


def read_split(folder: Path, split: str) -> tuple[PackManifest, PackSplit]:
    """The manifest of the packed corpus in `folder`, and what it states of a split.

    Raises   DataError when it cannot be read, or has no such split.
    """
    manifest = read_record(PackManifest, folder / MANIFEST, _PACK_AGAIN)
    if split not in manifest.splits:
        known = ", ".join(manifest.splits)
        raise DataError(f"{folder} has no split {split!r}", fix=f"Known: {known}")
    return manifest, manifest.splits[split]
