"""The order of windows: pinned for ever, each once an epoch, one token shared by neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.base.hashing import splitmix64
from stamm.corpus.shuffle import WindowOrder, permutation


def test_splitmix64_gives_the_published_values() -> None:
    """The stream of seed 1234567 in Vigna's reference: state i is seed + i * golden."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * golden) % 2**64 for i in range(5)], dtype=np.uint64)
    assert splitmix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_permutation_is_pinned() -> None:
    assert permutation(10, 28).tolist() == [2, 8, 3, 5, 1, 6, 0, 7, 9, 4]
    assert permutation(0, 1).tolist() == []
    assert permutation(1, 1).tolist() == [0]


@given(st.integers(0, 2000), st.integers(0, 2**64 - 1))
def test_permutation_is_one(count: int, seed: int) -> None:
    assert sorted(permutation(count, seed).tolist()) == list(range(count))


def test_seeds_give_different_orders() -> None:
    orders = {tuple(permutation(50, seed).tolist()) for seed in range(200)}
    assert len(orders) == 200


def test_permutation_is_unbiased() -> None:
    firsts = np.bincount([permutation(8, seed)[0] for seed in range(4000)], minlength=8)
    assert firsts.min() > 420  # 500 expected, standard deviation 21
    assert firsts.max() < 580


@given(st.integers(2, 5000), st.integers(1, 300), st.integers(0, 2**63 - 1))
def test_windows_cover_an_epoch_once(num_tokens: int, length: int, seed: int) -> None:
    if num_tokens <= length:
        with pytest.raises(DataError, match="do not fill one window"):
            WindowOrder([(0, num_tokens)], length, seed)
        return
    order = WindowOrder([(0, num_tokens)], length, seed)
    starts = np.sort(order.windows(0, order.count))
    assert (starts == np.arange(order.count) * length).all()
    assert starts[-1] + length + 1 + order.dropped_tokens == num_tokens
    assert 0 <= order.dropped_tokens < length


def test_epochs_differ_and_any_window_can_be_asked_first() -> None:
    order = WindowOrder([(0, 1001)], 10, 7)
    first = order.windows(0, order.count).tolist()
    second = order.windows(order.count, order.count).tolist()
    assert sorted(first) == sorted(second)
    assert first != second
    assert WindowOrder([(0, 1001)], 10, 7).windows(137, 1)[0] == second[137 - order.count]
    assert order.windows(3, 1)[0] == first[3]


@given(st.integers(0, 400), st.integers(0, 60))
def test_a_span_is_its_windows_across_stages_and_epochs(first: int, count: int) -> None:
    order = WindowOrder([(0, 101), (101, 112), (112, 500)], 10, 7)
    span = order.windows(first, count)
    assert span.dtype == np.int64
    assert span.tolist() == [int(order.windows(first + i, 1)[0]) for i in range(count)]


def test_impossible_windows_are_told() -> None:
    with pytest.raises(DataError, match="a window of 0 tokens"):
        WindowOrder([(0, 100)], 0, 1)
    for first, count in ((-1, 1), (1, -1)):
        with pytest.raises(DataError, match=f"no {count} windows from window {first} on"):
            WindowOrder([(0, 100)], 5, 1).windows(first, count)


def test_stages_follow_one_another_and_shuffle_inside() -> None:
    borders = [(0, 101), (101, 404), (404, 1000)]
    order = WindowOrder(borders, 10, 7)
    assert order.count == 10 + 30 + 59
    for epoch in range(2):
        starts = order.windows(epoch * order.count, order.count).tolist()
        at = 0
        for start, stop in borders:
            count = (stop - start - 1) // 10
            inside = starts[at : at + count]
            assert sorted(inside) == [start + w * 10 for w in range(count)]
            assert inside != sorted(inside)
            at += count
    assert order.dropped_tokens == 0 + 2 + 5
    assert order.windows(3, 1) == WindowOrder(borders[:1], 10, 7).windows(3, 1)
    with pytest.raises(DataError, match="9 tokens do not fill one window of 10"):
        WindowOrder([(0, 101), (101, 110)], 10, 7)


def test_the_order_of_a_run_is_pinned() -> None:
    order = WindowOrder([(0, 81), (81, 114)], 8, 28)
    assert order.windows(0, 14).tolist() == [40, 64, 72, 16, 48, 24, 32, 0, 56, 8, 97, 81, 89, 105]
    assert order.windows(14, 14).tolist() == [40, 16, 32, 48, 24, 8, 72, 64, 56, 0, 97, 81, 89, 105]
