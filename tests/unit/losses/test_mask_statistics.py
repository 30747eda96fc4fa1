"""What a mask does to a text: counted piece by piece, the same as at once, and judged."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.losses.config import Goldfish
from stamm.losses.goldfish import coverage, keep_mask, measure, stated_rate
from stamm.losses.mask_statistics import MaskCounts, cut

Run = tuple[NDArray[np.int64], NDArray[np.int64]]


def _text(count: int, seed: int = 0, documents: float = 0.005) -> Run:
    """Zipf's law over ids that small numbers are frequent in, as a tokenizer's are."""
    draw = np.random.RandomState(seed)
    labels = np.minimum(draw.zipf(1.2, count), 131_071).astype(np.int64) + 73
    return labels, np.cumsum(draw.rand(count) < documents).astype(np.int64)


def _plain_gaps(keep: NDArray[np.bool_], document: NDArray[np.int64]) -> list[int]:
    found = groupby(zip(document.tolist(), keep.tolist(), strict=True))
    return sorted(len(list(run)) for (_, learned), run in found if learned)


@pytest.mark.parametrize("name", ["stamm", "apertus"])
@pytest.mark.parametrize(("k", "h"), [(50, 50), (4, 13), (2, 1), (3, 700)])
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_pieces_add_up_to_the_whole(name: str, k: int, h: int, size: int) -> None:
    config = Goldfish(k=k, h=h, hash=name)  # type: ignore[arg-type]
    labels, document = _text(1500)
    tally = MaskCounts(stated_rate(config))
    for piece in cut(labels, document, h - 1, size):
        measure(config, piece, tally)
    keep, gaps = keep_mask(config, labels, document), []
    gaps = _plain_gaps(keep, document)
    found = tally.total()
    assert found == coverage(config, [(labels, document)])
    assert (found.labels, found.masked) == (1500, int((~keep).sum()))
    assert found.long_share == sum(gap for gap in gaps if gap > 100) / 1500
    at = [min(int(q * len(gaps)), len(gaps) - 1) for q in (0.5, 0.9, 0.99, 1.0)]
    assert found.gap_quantiles == tuple(gaps[i] for i in at)
    whole = document[h - 1 :] == document[: 1500 - h + 1]
    assert found.windows == (int(whole.sum()) if name == "stamm" else 1500 - h + 1)


def test_groups_are_counted_apart_and_add_up() -> None:
    labels, document = _text(5000)
    group = document % 3
    config = Goldfish(k=4, h=6)
    tally = MaskCounts(stated_rate(config))
    for piece in cut(labels, document, config.h - 1, 500):
        measure(config, replace(piece, group=piece.document % 3), tally)
    keep = keep_mask(config, labels, document)
    groups = tally.groups()
    assert list(groups) == [0, 1, 2]
    for number, found in groups.items():
        assert found.labels == int((group == number).sum())
        assert found.masked == int((~keep[group == number]).sum())
        longest = max(_plain_gaps(keep[group == number], document[group == number]))
        assert found.gap_quantiles[3] == longest
    total = tally.total()
    assert sum(found.windows for found in groups.values()) == total.windows
    assert sum(found.masked for found in groups.values()) == total.masked


def test_a_learned_run_ends_with_its_document_and_with_its_window() -> None:
    labels = np.arange(100, 400, dtype=np.int64)
    config = Goldfish(h=500)  # nothing is ever dropped
    document = np.repeat([0, 1, 2], [50, 130, 120])
    assert coverage(config, [(labels, document)]).gap_quantiles == (120, 130, 130, 130)
    windows = [(labels[i : i + 60], document[i : i + 60] * 0) for i in range(0, 300, 60)]
    assert coverage(config, windows).gap_quantiles == (60, 60, 60, 60)


def test_nothing_is_told_of_nothing() -> None:
    empty = np.empty(0, dtype=np.int64)
    for runs in ([], [(empty, empty)]):
        found = coverage(Goldfish(), runs)
        assert (found.labels, found.rate, found.windows, found.standard_errors) == (0, 0, 0, 0)
        assert found.gap_quantiles == (0, 0, 0, 0)
        assert found.faults(0.0) == ("no document is as long as a window: nothing is ever dropped",)


@pytest.mark.parametrize("copies", [1, 5, 40])
def test_passages_that_are_repeated_tell_the_rate_less_well(copies: int) -> None:
    labels, _ = _text(30_000, seed=1, documents=0.0)
    found = coverage(Goldfish(k=10, h=20), ((labels, labels * 0) for _ in range(copies)))
    assert found.windows == copies * (30_000 - 19)
    assert found.independent == pytest.approx(30_000 - 19, rel=0.1)


def test_a_text_of_copies_raises_no_false_alarm() -> None:
    """Its rate is off by many of the standard errors that as many different windows would have."""
    labels, _ = _text(20_000, seed=2, documents=0.0)
    found = coverage(Goldfish(k=50, h=50, salt=3), [(labels, labels * 0)] * 400)
    naive = (0.02 * 0.98 / found.windows) ** 0.5
    assert abs(found.window_rate - 0.02) / naive > 8
    assert abs(found.standard_errors) < 3
    assert found.judged and found.faults(0.0) == ()


@pytest.mark.parametrize("stated", [0.18, 0.2, 0.22])
def test_a_wrong_rate_is_a_fault_either_way(stated: float) -> None:
    """A mask of k = 5 is held against rates that it should not have, and the one it should."""
    labels, _ = _text(100_000, seed=4, documents=0.0)
    found = replace(coverage(Goldfish(k=5), [(labels, labels * 0)]), stated_rate=stated)
    if stated == 0.2:
        assert found.faults(0.0) == () and abs(found.standard_errors) < 4
    else:
        spread = (stated * (1 - stated) / 100_000) ** 0.5
        assert found.standard_errors == pytest.approx((0.2 - stated) / spread, rel=0.3)
        assert f"are dropped instead of {100 * stated:.3f}%" in found.faults(0.0)[0]


def test_a_short_text_is_not_judged_by_its_rate() -> None:
    labels, _ = _text(4000, documents=0.0)
    found = coverage(Goldfish(), [(labels, labels * 0)])
    assert not found.judged
    assert replace(found, masked=found.windows).faults(0.0) == ()


def test_the_published_hash_is_at_fault_on_text_like_ids_and_the_sound_one_is_not() -> None:
    windows = [_text(4096, seed=s) for s in range(40)]
    published = coverage(Goldfish(hash="apertus"), windows)
    assert published.judged and published.zero_share > 0.1
    zero, rate = published.faults(0.001)
    assert "key 0" in zero and "instead of 1.990%" in rate  # its table's own share
    shorter = coverage(Goldfish(hash="apertus", h=13), windows)
    assert shorter.zero_share == 0.0
    sound = coverage(Goldfish(), windows)
    assert sound.zero_share == 0.0 and sound.faults(0.0) == ()


def test_memory_does_not_grow_with_the_text() -> None:
    def pieces(count: int) -> Iterator[Run]:
        for seed in range(count):
            yield _text(20_000, seed)

    def peak(count: int) -> int:
        tracemalloc.start()
        coverage(Goldfish(), pieces(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)
    assert peak(40) < 1.1 * peak(4)


def test_memory_of_one_long_run_is_that_of_a_piece() -> None:
    labels, document = _text(2**21)
    tracemalloc.start()
    coverage(Goldfish(), [(labels, document)])
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found < 4 * labels.nbytes  # at once it would take more than ten such arrays
