"""Order of answers: transposition sort, ranks with ties, rewards."""

from __future__ import annotations

import itertools

import pytest

from stamm.align.judge.rating import (
    TranspositionSort,
    by_rating,
    ranks,
    repeated_ranks,
    reward,
)


@pytest.mark.parametrize("quality", list(itertools.permutations(range(5))))
def test_five_answers_are_sorted_by_any_transitive_preference(quality: tuple[int, ...]) -> None:
    sort = TranspositionSort(range(5))
    asked = []
    while pairs := sort.pairs():
        for first, second in pairs:
            asked.append(frozenset((first, second)))
            sort.decide((first, second), quality[first] > quality[second])
    assert [quality[item] for item in sort.order] == [4, 3, 2, 1, 0]
    assert len(asked) == len(set(asked)) <= 10


def test_answers_already_in_order_cost_one_comparison_for_each_neighbour() -> None:
    sort = TranspositionSort([3, 1, 2])
    count = 0
    while pairs := sort.pairs():
        count += len(pairs)
        for pair in pairs:
            sort.decide(pair, True)
    assert (sort.order, count) == ([3, 1, 2], 2)


def test_a_circular_preference_ends() -> None:
    sort = TranspositionSort([0, 1, 2])
    better = {(0, 1): True, (1, 2): True, (2, 0): True}
    for _ in range(10):
        for pair in sort.pairs():
            sort.decide(pair, better.get(pair, False))
    assert sort.pairs() == []
    assert sorted(sort.order) == [0, 1, 2]


def test_no_or_one_answer_needs_no_comparison() -> None:
    assert TranspositionSort([]).pairs() == TranspositionSort([0]).pairs() == []


def test_ranks_follow_comparisons_first_and_ratings_after() -> None:
    means = [5.0, 9.0, 8.0, 3.0, 3.0, 1.0]
    assert by_rating(means) == [1, 2, 0, 3, 4, 5]
    assert ranks(means, best=[2, 1]) == [3.0, 2.0, 1.0, 4.5, 4.5, 6.0]
    assert ranks([4.0, 4.0], best=[]) == [1.5, 1.5]


def test_equal_answers_share_the_mean_of_their_ranks() -> None:
    assert repeated_ranks([1.0, 2.0, 3.0], [2, 1, 3]) == [1.5, 3.0, 5.0]
    assert repeated_ranks([1.5, 1.5], [1, 3]) == [2.5, 2.5]


def test_rewards_are_mid_rank_quantiles() -> None:
    assert [reward(rank, 4) for rank in (1, 2, 3, 4)] == [0.875, 0.625, 0.375, 0.125]
    assert reward(1, 1) == reward(2.5, 4) == 0.5
