"""The walk over a packed corpus: every label once, as training would hash it, in memory that is flat."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from stamm.corpus import goldfish_check
from stamm.corpus.goldfish_check import GoldfishCheck, counted
from stamm.losses.goldfish import coverage

DOCUMENT = 170


class MadeUp:
    """A packed corpus without files: equal documents, `per_shard` of them a shard, three languages."""

    def __init__(
        self,
        documents: int,
        per_shard: int,
        stages: tuple[int, ...] = (),
        length: int = DOCUMENT,
    ) -> None:
        self._documents, self._per_shard, self._length = documents, per_shard, length
        self.num_tokens = documents * length
        borders = (0, *stages, self.num_tokens)
        self.stages = tuple(itertools.pairwise(borders))

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        place = np.arange(start, stop, dtype=np.int64)
        return (place * place * 31 + place // 3) % 131_072

    def sidecars(self, columns: list[str]) -> Iterator[pa.Table]:
        for first in range(0, self._documents, self._per_shard):
            numbers = range(first, min(first + self._per_shard, self._documents))
            rows: dict[str, list[Any]] = {
                "start": [i * self._length for i in numbers],
                "stop": [(i + 1) * self._length for i in numbers],
                "language": [(None, "eng_Latn", "deu_Latn")[i % 3] for i in numbers],
            }
            yield pa.table({name: rows[name] for name in columns})


@pytest.mark.parametrize("piece", [1, 77, 2**18])
@pytest.mark.parametrize("h", [1, 13, 200])
@pytest.mark.parametrize("per_shard", [1, 4, 50])
def test_our_hash_sees_the_whole_stream(
    monkeypatch: pytest.MonkeyPatch, piece: int, h: int, per_shard: int
) -> None:
    monkeypatch.setattr(goldfish_check, "PIECE", piece)
    split = MadeUp(11, per_shard, stages=(500, 700))
    config = GoldfishCheck(k=3, h=h)
    tally, languages = counted(config, split)  # type: ignore[arg-type]
    place = np.arange(1, split.num_tokens)
    labels, document = split.read(1, split.num_tokens), place // DOCUMENT
    assert tally.total() == coverage(config, [(labels, document)])
    assert languages == ["unknown", "eng_Latn", "deu_Latn"][: len(languages)]
    for number, found in tally.groups().items():
        assert found.labels == int((document % 3 == number).sum())


@pytest.mark.parametrize("context", [60, 125, 170, 400])  # 125 divides the first stage
def test_the_published_hash_sees_one_sequence_of_one_stage_at_a_time(context: int) -> None:
    split = MadeUp(11, 2, stages=(500, 720))
    config = GoldfishCheck(k=3, h=20, hash="apertus", context=context)
    windows = []
    for first, end in split.stages:
        for start in range(first, end, context):
            if start + context + 1 <= end:
                place = np.arange(start + 1, start + context + 1)
                windows.append((split.read(start + 1, start + context + 1), place // DOCUMENT))
    tally, _ = counted(config, split)  # type: ignore[arg-type]
    assert tally.total() == coverage(config, windows)
    assert tally.total().labels == context * len(windows)


@pytest.mark.parametrize("name", ["stamm", "apertus"])
def test_memory_does_not_grow_with_the_corpus(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Neither with its tokens nor with its documents, of which there are many, and short."""
    monkeypatch.setattr(goldfish_check, "PIECE", 1024)
    config = GoldfishCheck(h=3, hash=name, context=1024)  # type: ignore[arg-type]

    def peak(documents: int) -> int:
        tracemalloc.start()
        counted(config, MadeUp(documents, 200, length=6))  # type: ignore[arg-type]
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(300)
    assert peak(40_000) < 1.15 * peak(2000)


def test_an_empty_corpus_is_at_fault() -> None:
    tally, languages = counted(GoldfishCheck(), MadeUp(0, 1))  # type: ignore[arg-type]
    assert languages == [] and tally.groups() == {}
    assert tally.total().faults(0.0)
