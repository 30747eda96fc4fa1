"""Blocks, windows, normalization and buckets, against plain Python."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.corpus.classifiers.config import FeatureConfig
from stamm.corpus.classifiers.features import (
    BLOCK_CHARACTERS,
    blocks,
    hash_ngrams,
    normalize_spelling,
    window_starts,
    windows,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


def plain_buckets(spelt: str, length: int, bits: int) -> list[int]:
    found = []
    for start in range(len(spelt) - length + 1):
        value = 0
        for letter in spelt[start : start + length]:
            value = value * 0xD1342543DE82EF95 + ord(letter)
        value = (value + length) * 0x9E3779B97F4A7C15 % 2**64
        found.append(value >> (64 - bits))
    return found


@given(TEXT)
def test_buckets_agree_with_whole_number_arithmetic(text: str) -> None:
    config = FeatureConfig(bucket_bits=20, min_ngram=2, max_ngram=5)
    found = hash_ngrams(text, config)
    assert [buckets.tolist() for buckets in found] == [
        plain_buckets(text, length, 20) for length in (2, 3, 4, 5)
    ]


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("Two  WORDS\n", "two words"),
        ("year 1984", "year 0000"),
        ("@name hello https://example.org/a?b there", "hello there"),
        ("hid\u00adden wo\u200brd", "hidden word"),
        ("ﬁne Ａ", "fine a"),
        ("\u200b\u00ad", ""),
        ("", ""),
    ],
)
def test_spelling(text: str, spelt: str) -> None:
    assert normalize_spelling(text) == spelt


@given(st.text(" ab", max_size=3 * BLOCK_CHARACTERS // 100), st.integers(0, 400))
def test_blocks_lose_nothing(text: str, times: int) -> None:
    whole = text * times
    found = list(blocks(whole))
    assert "".join(found) == whole
    assert max(map(len, found)) <= BLOCK_CHARACTERS


def test_a_block_ends_behind_a_blank_where_it_can() -> None:
    first, _ = blocks("abcdefg " * 1500)
    assert first.endswith(" ")
    assert len(next(blocks("x" * 20_000))) == BLOCK_CHARACTERS


@given(st.integers(0, 1000), st.integers(1, 200))
def test_windows_cover_everything_and_overlap_by_half(length: int, window: int) -> None:
    starts = list(window_starts(length, window))
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert starts[-1] + window >= length
    assert starts[-1] == max(0, length - window)
    steps = np.diff(starts)
    assert (steps <= max(1, window // 2)).all()


def test_no_combining_mark_can_form_a_run_that_is_not_cut() -> None:
    marks = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
    assert len(marks) > 800
    assert all(len(normalize_spelling("a" + mark * 1000)) < 100 for mark in marks)
    assert normalize_spelling("a" + "".join(marks)) == normalize_spelling("a" + "".join(marks[:32]))
    assert normalize_spelling("— " * 40 + "—" * 40) == " ".join(["—"] * 40) + " " + "—" * 40


def test_a_short_text_is_one_window_with_blanks_around_it() -> None:
    assert list(windows("Hello", FeatureConfig())) == [" hello "]
    assert list(windows("", FeatureConfig())) == [""]
