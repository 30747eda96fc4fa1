"""Overlap of two token sequences: Rouge-L, longest common span and prefix. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def longest_common_subsequence(first: Sequence[int], second: Sequence[int]) -> int:
    """Length in tokens of the longest sequence that both hold in order, gaps allowed.

    A column of the table is one integer of len(second) bits.

    Source   Hyyrö 2004, Bit-parallel LCS-length computation revisited
    """
    places: dict[int, int] = {}
    for j, token in enumerate(second):
        places[token] = places.get(token, 0) | 1 << j
    # Bit j of `row` is 0 where the length grows at column j.
    whole = (1 << len(second)) - 1
    row = whole
    for token in first:
        both = row & places.get(token, 0)
        row = (row + both | row - both) & whole
    return len(second) - row.bit_count()


def longest_common_span(first: Sequence[int], second: Sequence[int]) -> int:
    """Length in tokens of the longest run that both hold without gaps."""
    places: dict[int, list[int]] = {}
    for j, token in enumerate(second):
        places.setdefault(token, []).append(j)
    longest = 0
    spans: dict[int, int] = {}  # length of the common run that ends at each position of `second`
    for token in first:
        spans = {j: spans.get(j - 1, 0) + 1 for j in places.get(token, ())}
        longest = max(longest, *spans.values(), 0)
    return longest


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens until the two first differ, or the shorter one ends."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def rouge_l(produced: Sequence[int], truth: Sequence[int]) -> float:
    """Rouge-L F1 in [0, 1]: harmonic mean of LCS / len(produced) and LCS / len(truth).

    F1 = 2 LCS / (len(produced) + len(truth))

    Edge     0 when either is empty.
    Source   Lin 2004, ROUGE, with beta = 1 and tokens of the model in place of words, as in
             swiss-ai/apertus_memorization.
    """
    if not produced or not truth:
        return 0.0
    return 2 * longest_common_subsequence(produced, truth) / (len(produced) + len(truth))


def type_token_ratio(tokens: Sequence[int]) -> float:
    """Share of different tokens in [0, 1]: near 0 for a text that repeats itself; 0 for none."""
    return len(set(tokens)) / len(tokens) if tokens else 0.0
