"""Shuffled order of training examples over several epochs, with random access."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stamm.corpus.shuffle import shuffled


def epoch_order(first: int, count: int, total: int, seed: int) -> NDArray[np.int64]:
    """Numbers of the examples at places first .. first + count - 1 of a run over `total` examples.

    Every epoch is a shuffle of its own, which is never stored.

    Shapes   int64, (count,)
    Checked  tests/unit/align/test_answer_dataset.py
    """
    places = np.arange(first, first + count, dtype=np.int64)
    numbers = np.empty_like(places)
    for epoch in np.unique(places // total).tolist():
        inside = places // total == epoch
        numbers[inside] = shuffled(places[inside] % total, total, seed + epoch)
    return numbers
