"""The shuffle that no memory holds: every number once, pinned for ever, and in no order at all.

Bounds of the statistics stand five standard deviations of a uniform shuffle away.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.corpus.shuffle import WindowOrder, places_of, shuffled

LARGE = (10_007, 2**20, 10**6 + 3, 3_662_109_375, 2**40 - 1, 2**40, 2**63 - 1)
"""Primes, powers of two and their neighbours, and the windows of 15e12 tokens by 4096."""


def splitmix(state: int) -> int:
    """One output of SplitMix64, in whole numbers of Python."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def one_place(place: int, count: int, seed: int, *, back: bool = False) -> int:
    """The docstring's formulas for one number, without numpy; `back` undoes them."""
    golden = 0x9E3779B97F4A7C15
    rows = next(r for r in itertools.count(math.isqrt(count)) if r % 2 == 0 and r * r >= count)
    columns = (count + rows - 1) // rows
    begin = splitmix(seed % 2**64)
    keys = [(turn, splitmix(begin + turn * golden)) for turn in range(24)]
    while True:
        row, column = divmod(place, columns)
        for turn, key in reversed(keys) if back else keys:
            sign = -1 if back else 1
            if turn % 2 == 0:
                row = (row + sign * (splitmix(key + column * golden) % rows)) % rows
            else:
                column = (column + sign * (splitmix(key + row * golden) % columns)) % columns
        place = row * columns + column
        if place < count:
            return place


def at(*places: int) -> NDArray[np.int64]:
    """Places to ask for."""
    return np.array(places, dtype=np.int64)


def whole(count: int, seed: int) -> NDArray[np.int64]:
    """The shuffle from its first place to its last."""
    return shuffled(np.arange(count), count, seed)


def chi_square_score(counts: NDArray[np.int64], freedom: int) -> float:
    """How many standard deviations counts of equally likely cells are from even ones."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def cells(first: NDArray[np.int64], second: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How often each of 32 equal parts of the one meets each of the other."""
    assert count % 32 == 0
    return np.bincount((first * 32 // count) * 32 + second * 32 // count, minlength=1024)


@pytest.mark.parametrize("seed", [0, 28, 2**64 - 1])
def test_every_number_comes_once_for_every_small_count(seed: int) -> None:
    for count in range(1, 301):
        assert (np.sort(whole(count, seed)) == np.arange(count)).all()


def test_every_number_of_a_million_comes_once() -> None:
    count = 10**6 + 3
    assert (np.bincount(whole(count, 5), minlength=count) == 1).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 9, 16, 17, 90, 91, 300])
def test_small_shuffles_are_those_of_the_formula(count: int) -> None:
    for seed in (0, -1, 2**70 + 3):
        assert whole(count, seed).tolist() == [one_place(i, count, seed) for i in range(count)]


@pytest.mark.parametrize("count", LARGE)
def test_a_large_shuffle_is_the_formula_and_can_be_undone(count: int) -> None:
    inner = np.random.default_rng(count).integers(0, count, 60).tolist()
    places = at(0, 1, count // 2, count - 2, count - 1, *inner)
    numbers = shuffled(places, count, 77)
    assert numbers.tolist() == [one_place(place, count, 77) for place in places.tolist()]
    undone = [one_place(number, count, 77, back=True) for number in numbers.tolist()]
    assert undone == places.tolist() == places_of(numbers, count, 77).tolist()


def test_the_shuffle_is_pinned() -> None:
    assert whole(10, 28).tolist() == [9, 8, 5, 0, 6, 1, 7, 4, 2, 3]
    large = shuffled(at(0, 1, 2, 2**40 - 1), 2**40, 28)
    assert large.tolist() == [133970544558, 884563405448, 577608067308, 736857352869]


def test_how_places_are_asked_for_changes_nothing() -> None:
    span = shuffled(np.arange(500, 1500), 3_662_109_375, 3)
    singles = [int(shuffled(at(500 + i), 3_662_109_375, 3)[0]) for i in (999, 0, 500)]
    assert singles == [span[999], span[0], span[500]]
    assert len(shuffled(at(), 10, 3)) == 0


@pytest.mark.parametrize("place", [-1, 10, 2**62])
def test_a_place_that_does_not_exist_is_told(place: int) -> None:
    with pytest.raises(DataError, match="not all among 10"):
        shuffled(at(0, place), 10, 1)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_order_of_a_few_comes_up_equally_often(count: int) -> None:
    orders = list(itertools.permutations(range(count)))
    seen = dict.fromkeys(orders, 0)
    for seed in range(10 * len(orders)):
        seen[tuple(whole(count, seed).tolist())] += 1
    assert abs(chi_square_score(np.array(list(seen.values())), len(orders) - 1)) < 5


@pytest.mark.parametrize("count", [7, 9, 25])  # tables of 3 x 3 and 5 x 5 would be one-sided
def test_orders_are_as_often_odd_as_even(count: int) -> None:
    above = np.triu(np.ones((count, count), dtype=bool))
    odd = 0
    for seed in range(400):
        order = whole(count, seed)
        odd += int(((order[:, None] > order[None, :]) & above).sum()) % 2
    assert abs(odd - 200) < 5 * 10


@pytest.mark.parametrize("count", [9_984, 262_144])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_place_says_nothing_about_its_number(count: int, seed: int) -> None:
    places, numbers = np.arange(count), whole(count, seed)
    # |i - j| of two different numbers below n has mean (n + 1) / 3 and variance near n^2 / 18.
    displacement = float(np.abs(numbers - places).mean())
    mean = (count * count - 1) / (3 * count)
    assert abs(displacement - mean) < 5 * count / math.sqrt(18 * count)
    assert abs(chi_square_score(cells(places, numbers, count), 31 * 31)) < 5
    fixed = int((numbers == places).sum())
    assert fixed < 10  # one expected, Poisson


@pytest.mark.parametrize("count", [9_984, 262_144])
@pytest.mark.parametrize("lag", [1, 2, 100, 512, 513])  # 100 and 512: the columns of the tables
def test_neighbours_say_nothing_about_one_another(count: int, lag: int) -> None:
    numbers = whole(count, 4)
    near, far = numbers[:-lag], numbers[lag:]
    assert abs(np.corrcoef(near, far)[0, 1]) < 5 / math.sqrt(len(near))
    assert abs(chi_square_score(cells(near, far, count), 31 * 31)) < 5
    apart = (far - near) % count
    assert abs(chi_square_score(np.bincount(apart * 1024 // count, minlength=1024), 1023)) < 5


@pytest.mark.parametrize("count", [3_662_109_376, 2**40])
@pytest.mark.parametrize("first", [0, 1_234_567_890])
def test_a_span_of_a_large_shuffle_is_spread_evenly(count: int, first: int) -> None:
    size = 2**17
    numbers = shuffled(np.arange(first, first + size), count, 9)
    assert len(np.unique(numbers)) == size
    assert abs(chi_square_score(np.bincount(numbers * 1024 // count, minlength=1024), 1023)) < 5
    low = np.bincount(numbers % 1024, minlength=1024)
    assert abs(chi_square_score(low, 1023)) < 5
    steps = np.diff(numbers) % count
    assert abs(chi_square_score(np.bincount(steps * 1024 // count, minlength=1024), 1023)) < 5


@pytest.mark.parametrize("asked", [(2, 1), (1, 5), (7, 3)])
def test_epochs_and_stages_are_independent(asked: tuple[int, int]) -> None:
    epoch, other = asked
    count, length = 9_984, 3
    stages = [(0, count * length + 1), (count * length + 1, 2 * count * length + 2)]
    order = WindowOrder(stages, length, 6)
    assert order.count == 2 * count
    begin = np.array([0, count * length + 1])[:, None]

    def of(number: int) -> list[NDArray[np.int64]]:
        both = order.windows(number * order.count, order.count).reshape(2, count)
        return list((both - begin) // length)

    first, second = of(epoch), of(other)
    for one, two in ((first[0], first[1]), (first[0], second[0]), (first[1], second[0])):
        assert abs(chi_square_score(cells(one, two, count), 31 * 31)) < 5
        assert int((one == two).sum()) < 10


def test_seeds_beside_one_another_are_independent() -> None:
    count = 9_984
    for seed in range(4):
        one, two = whole(count, seed), whole(count, seed + 1)
        assert abs(chi_square_score(cells(one, two, count), 31 * 31)) < 5


def test_memory_does_not_grow_with_the_stream() -> None:
    peaks = []
    for count in (10**4, 2**40):
        tracemalloc.start()
        order = WindowOrder([(0, count * 4096 + 1)], 4096, 1)
        order.windows(count // 2, 512)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 200_000
