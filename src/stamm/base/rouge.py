"""Rouge-L of two sequences of words or tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def longest_common_subsequence(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Length of the longest sequence that both hold in order, gaps allowed.

    A column of the table is one integer of len(second) bits.

    Source   Hyyrö 2004, Bit-parallel LCS-length computation revisited
    """
    places: dict[Hashable, int] = {}
    for j, token in enumerate(second):
        places[token] = places.get(token, 0) | 1 << j
    # Bit j of `row` is 0 where the length grows at column j.
    whole = (1 << len(second)) - 1
    row = whole
    for token in first:
        both = row & places.get(token, 0)
        row = (row + both | row - both) & whole
    return len(second) - row.bit_count()


def rouge_l(produced: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Rouge-L F1 in [0, 1]: harmonic mean of LCS / len(produced) and LCS / len(truth).

    F1 = 2 LCS / (len(produced) + len(truth))

    Edge     0 when either is empty.
    Source   Lin 2004, ROUGE, with beta = 1; of tokens of a model in place of words as in
             swiss-ai/apertus_memorization
    """
    if not produced or not truth:
        return 0.0
    return 2 * longest_common_subsequence(produced, truth) / (len(produced) + len(truth))
