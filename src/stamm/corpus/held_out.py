"""The splits of a corpus, and the number of held-out documents of a language."""

from __future__ import annotations

from stamm.base.errors import DataError

TRAIN, HELD_OUT, CONTROL = "train", "held_out", "control"


def count_held_out(documents: int, share: float) -> int:
    """Number of held-out documents of a language: max(1, round(share * n)), never all.

    Edge     share 0 holds nothing out; a language with one document is never held out.
    Checked  tests/unit/corpus/test_split.py
    """
    if share == 0.0 or documents < 2:
        return 0
    return min(documents - 1, max(1, round(share * documents)))


def check_held_out(documents: int) -> None:
    """Raise DataError without a held-out document to evaluate on."""
    if not documents:
        raise DataError(
            "the packed corpus holds no held-out document",
            fix="Add documents: none is held out of a language with a single one; or set corpus.held_out "
            "above 0; or leave out the evaluation, evaluate=none",
        )
