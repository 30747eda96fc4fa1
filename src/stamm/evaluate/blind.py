"""Blind baselines: how far a choice task is solved without its questions.

A task that a blind rule solves does not measure what it is for (open-loop validity, Ellis et al.
2023, arXiv 2212.07489, for environments; their environment needs a proprietary game and is not used).

answers_only   the same model, by the likelihood of each choice without the question, per byte
longest, shortest   the choice with the most or the fewest bytes
unigram        the choice that is likeliest per byte by the token frequencies of the training corpus
majority       the number of the choice that is right most often
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stamm.corpus.packed_dataset import PackedSplit

BLIND_ERRORS = 3.0
"""Standard errors above chance from which a task counts as solved by a blind baseline."""
_TOKENS = 20_000_000  # of the training corpus that are counted
_AT_ONCE = 1 << 22


def unigram_log_probs(pack: Path) -> NDArray[np.float64]:
    """Log-probability of each token by its frequency in the training split, one more counted of each.

    Edge     of a larger split the first 20 million tokens
    """
    split = PackedSplit.open(pack, "train")
    counts = np.ones(split.vocabulary)
    for start in range(0, min(split.num_tokens, _TOKENS), _AT_ONCE):
        part = split.read(start, min(start + _AT_ONCE, split.num_tokens, _TOKENS))
        counts += np.bincount(part, minlength=split.vocabulary)
    found: NDArray[np.float64] = np.log(counts / counts.sum())
    return found


def blind_credits(
    choices: Sequence[str],
    ids: Sequence[Sequence[int]],
    label: int,
    unconditional: Sequence[float] | None,
    unigram: NDArray[np.float64] | None,
) -> dict[str, float]:
    """Credit of each blind baseline for one item, in [0, 1], without `majority`.

    ids             of each choice
    unconditional   log-likelihood of each choice without the question; None for sentences that have
                    none
    """
    sizes = [float(len(choice.encode())) for choice in choices]
    values: dict[str, Sequence[float]] = {
        "longest": sizes,
        "shortest": [-size for size in sizes],
    }
    if unconditional is not None:
        pairs = zip(unconditional, sizes, strict=True)
        values["answers_only"] = [log_prob / size for log_prob, size in pairs]
    if unigram is not None:
        known = len(unigram)
        values["unigram"] = [
            math.fsum(float(unigram[each]) for each in y if each < known) / size
            for y, size in zip(ids, sizes, strict=True)
        ]
    return {name: credit(found, label) for name, found in values.items()}


def credit(values: Sequence[float], label: int) -> float:
    """1 where the value of choice `label` is the largest, 1 / k where it is one of k, else 0."""
    best = max(values)
    return 1.0 / list(values).count(best) if values[label] == best else 0.0
