"""The measures against brute force over every subsequence and span."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.audit.rouge import (
    common_prefix,
    longest_common_span,
    type_token_ratio,
)
from stamm.base.rouge import longest_common_subsequence, rouge_l

short = st.lists(st.integers(0, 3), max_size=8)


def subsequences(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return {
        chosen for size in range(len(tokens) + 1) for chosen in itertools.combinations(tokens, size)
    }


def spans(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    ends = range(len(tokens) + 1)
    return {tuple(tokens[i:j]) for i in ends for j in ends if i <= j}


@given(short, short)
def test_subsequence_equals_brute_force(a: list[int], b: list[int]) -> None:
    expected = max(len(common) for common in subsequences(a) & subsequences(b))
    assert longest_common_subsequence(a, b) == expected


@given(short, short)
def test_span_equals_brute_force(a: list[int], b: list[int]) -> None:
    assert longest_common_span(a, b) == max(len(common) for common in spans(a) & spans(b))


@given(short, short)
def test_prefix_equals_brute_force(a: list[int], b: list[int]) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


@given(short, short)
def test_rouge_is_the_harmonic_mean_of_both_shares(a: list[int], b: list[int]) -> None:
    common = longest_common_subsequence(a, b)
    if common == 0:
        assert rouge_l(a, b) == 0.0
        return
    precision, recall = common / len(a), common / len(b)
    assert rouge_l(a, b) == pytest.approx(2 * precision * recall / (precision + recall))
    assert rouge_l(a, b) == rouge_l(b, a) <= 1.0
    assert rouge_l(a, a) == 1.0


def test_worked_example() -> None:
    produced, truth = [1, 2, 3, 9, 5], [1, 2, 4, 3, 5, 6]
    assert longest_common_subsequence(produced, truth) == 4
    assert longest_common_span(produced, truth) == 2
    assert common_prefix(produced, truth) == 2
    assert rouge_l(produced, truth) == pytest.approx(8 / 11)


def test_type_token_ratio() -> None:
    assert type_token_ratio([7, 7, 7, 7]) == 0.25
    assert type_token_ratio([1, 2, 3]) == 1.0
    assert type_token_ratio([]) == 0.0
