"""Repetition against a slow and plain counting of the same definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.corpus.quality.measures import REPEATED_GRAMS, TOP_GRAMS, gram_shares, repeated_share


def _shares(words: list[str], width: int = 1) -> dict[str, float]:
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return gram_shares(
        np.array([numbers[word] for word in words], np.int64),
        np.array([len(word) for word in words], np.int64),
        width,
    )


def _slow(words: list[str], width: int = 1) -> dict[str, float]:
    total = sum(map(len, words))
    shares = {}
    for n in (*TOP_GRAMS, *REPEATED_GRAMS):
        run = n * width
        grams = [tuple(words[at : at + run]) for at in range(len(words) - run + 1)]
        most = max(map(grams.count, grams), default=0)
        if n in TOP_GRAMS:
            tops = [g for g in grams if grams.count(g) == most and most > 1]
            letters = max((most * sum(map(len, g)) for g in tops), default=0)
            shares[f"top_{n}"] = min(letters, total) / max(1, total)
        else:
            covered = {
                place
                for at, gram in enumerate(grams)
                if gram in grams[:at]
                for place in range(at, at + run)
            }
            shares[f"repeated_{n}"] = sum(len(words[p]) for p in covered) / max(1, total)
    return shares


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=40), st.sampled_from([1, 2]))
def test_against_plain_counting(words: list[str], width: int) -> None:
    assert _shares(words, width) == pytest.approx(_slow(words, width))


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.integers(2, 4))
def test_repeated_passages_against_plain_counting(passage: list[str], times: int) -> None:
    words = [*passage, "x", *passage * times, "y"]
    assert _shares(words) == pytest.approx(_slow(words))


def test_a_text_without_repeats_has_none() -> None:
    assert set(_shares([f"w{n}" for n in range(500)]).values()) == {0.0}


def test_repeated_share() -> None:
    assert repeated_share([]) == (0.0, 0.0)
    assert repeated_share(["ab", "ab", "cdef", "ab"]) == (0.5, 0.4)
