"""The splits of a corpus, and how many documents of a language are kept from training."""

from __future__ import annotations

TRAIN, HELD_OUT, CONTROL = "train", "held_out", "control"


def count_held_out(documents: int, share: float) -> int:
    """How many of a language's documents are held out: max(1, round(share * n)), never all.

    Edge     share 0 holds nothing out; a language with one document is never held out.
    Checked  tests/unit/corpus/test_split.py
    """
    if share == 0.0 or documents < 2:
        return 0
    return min(documents - 1, max(1, round(share * documents)))
