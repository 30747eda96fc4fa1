"""Blind baselines: how far a choice task is solved without its questions.

A task that a blind rule solves does not measure what it is for (open-loop validity, Ellis et al.
2023, arXiv 2212.07489, for environments; their environment needs a proprietary game and is not used).

answers_only   the same model, by the likelihood of each choice without the question, per byte
longest, shortest   the choice with the most or the fewest bytes
unigram        the choice that is likeliest per byte by the token frequencies of the training corpus
majority       the number of the choice, or the answer, that is right most often
majority_text  the choice whose text is right most often; guessing where it is not among the choices
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.corpus.packed_dataset import PackedSplit
from stamm.evaluate.task import ratio_metric
from stamm.statistics.clustered_ratio import ClusteredRatio

BLIND_ERRORS = 3.0
"""Standard errors above chance from which a task counts as solved by a blind baseline."""
_MAJORITY = ("majority", "majority_text")
_TOKENS = 20_000_000  # of the training corpus that are counted
_AT_ONCE = 1 << 22


def unigram_log_probs(pack: Path) -> NDArray[np.float64]:
    """Log-probability of each token by its frequency in the training split, with add-one smoothing.

    Edge     of a larger split the first 20 million tokens
    """
    split = PackedSplit.open(pack, "train")
    counts = np.ones(split.vocabulary)
    for start in range(0, min(split.num_tokens, _TOKENS), _AT_ONCE):
        part = split.read(start, min(start + _AT_ONCE, split.num_tokens, _TOKENS))
        counts += np.bincount(part, minlength=split.vocabulary)
    log_probs: NDArray[np.float64] = np.log(counts / counts.sum())
    return log_probs


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
            math.fsum(float(unigram[token]) for token in y if token < known) / size
            for y, size in zip(ids, sizes, strict=True)
        ]
    return {name: credit(choice_scores, label) for name, choice_scores in values.items()}


def credit(values: Sequence[float], label: int) -> float:
    """1 where the value of choice `label` is the largest, 1 / k where it is one of k, else 0."""
    best = max(values)
    return 1.0 / list(values).count(best) if values[label] == best else 0.0


_COUNTED = 1000  # answers that are counted at once


def most_frequent(answers: Callable[[], Iterator[str]], least: int = 1) -> str:
    """The most frequent answer, the first by order of text among equals; "" for none.

    answers   gives all answers, and again the same ones
    least     how often it occurs at least

    Edge      memory does not grow with their number: only an answer that makes up more than 1/1,001 of
              them is found with certainty, and for the others "" may be returned
    Source    Misra and Gries 1982, Science of Computer Programming 2
    """
    kept: Counter[str] = Counter()
    for answer in answers():
        if answer in kept or len(kept) < _COUNTED:
            kept[answer] += 1
        else:
            kept.subtract(list(kept))
            kept = +kept
    counted = Counter(answer for answer in answers() if answer in kept)
    exact = {answer: count for answer, count in counted.items() if count >= least}
    return min(exact, key=lambda answer: (-exact[answer], answer), default="")


@dataclass
class BlindSummary:
    """Blind baselines of a task, added item by item.

    credits   of each baseline
    minus     main metric minus the credit
    solved    items that a baseline other than those of the most frequent answer solves
    """

    credits: dict[str, ClusteredRatio] = field(default_factory=dict)
    minus: dict[str, ClusteredRatio] = field(default_factory=dict)
    items: int = 0
    solved: int = 0

    def add(
        self, main: float, credits: Mapping[str, float], cluster: str, weight: float = 1.0
    ) -> None:
        """Add an item: its main metric, the credit of each baseline, and its weight in both."""
        self.items += 1
        self.solved += any(v == 1.0 for name, v in credits.items() if name not in _MAJORITY)
        for name, value in credits.items():
            for kept, amount in ((self.credits, value), (self.minus, main - value)):
                kept.setdefault(name, ClusteredRatio()).add(amount * weight, weight, cluster)

    def details(self, chance: float | None) -> dict[str, Any]:
        """Values of a task's result; {} without a baseline.

        chance   of guessing; None where the answer is not one of several: a warning is given then where
                 one answer is right in more than half of the items
        """
        strongest = max(self.credits, key=lambda name: self.credits[name].value, default="")
        if not strongest:
            return {}
        return {
            "blind": {name: ratio_metric(r, chance).plain() for name, r in self.credits.items()},
            "strongest_blind": strongest,
            "sighted_minus_blind": ratio_metric(self.minus[strongest], None).plain(),
            "solved_blind": self.solved,
            "warning": self._frequent() if chance is None else self._warning(chance),
        }

    def _frequent(self) -> str:
        ratio = self.credits["majority"]
        error = max(ratio.standard_error or 0.0, 1 / self.items)
        if ratio.value - 0.5 <= BLIND_ERRORS * error:
            return ""
        return f"the same answer is right in {ratio.value:.3f} of the items"

    def _warning(self, chance: float) -> str:
        # At least the standard error of guessing: a few items may all be solved by chance.
        least = math.sqrt(chance * (1 - chance) / self.items)
        solved = {
            name: ratio.value
            for name, ratio in self.credits.items()
            if ratio.value - chance > BLIND_ERRORS * max(ratio.standard_error or 0.0, least)
        }
        named = ", ".join(f"{name} {value:.3f}" for name, value in solved.items())
        return f"solved blind above chance: {named}" if solved else ""
