"""Overlap of two token sequences: longest common span and prefix. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence


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


def type_token_ratio(tokens: Sequence[int]) -> float:
    """Share of different tokens in [0, 1]: near 0 for a text that repeats itself; 0 for none."""
    return len(set(tokens)) / len(tokens) if tokens else 0.0
