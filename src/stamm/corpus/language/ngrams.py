"""A linear model over the words and pieces of words of a text: the one door to fastText."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import fasttext

from stamm.base.errors import DataError
from stamm.corpus.language.config import LanguageTrainConfig

LABEL: Final = "__label__"


class NgramModel:
    """A trained model: words to the label it finds most probable.

    Raises   DataError when the file is missing or no fastText model.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._model = fasttext.load_model(str(path))
        except (ValueError, RuntimeError, MemoryError) as error:
            raise DataError(
                f"{path} is no model of languages: {error}",
                fix="Name a file that language training wrote",
            ) from None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it can answer, without their prefix."""
        return tuple(sorted(label.removeprefix(LABEL) for label in self._model.labels))

    def predict(self, letters: str) -> tuple[str, float]:
        """The most probable label for one line of words, and its probability."""
        labels, scores = self._model.predict(letters)
        # Sums of probabilities in float32 may end a little above 1.
        return labels[0].removeprefix(LABEL), min(1.0, float(scores[0]))


def train_ngrams(samples: Path, config: LanguageTrainConfig, target: Path) -> None:
    """Train on lines "__label__TAG words" and write the quantised model to `target`.

    One thread and one seed: the same lines give the same bytes on one machine. Another processor
    may round sums differently.
    Raises   DataError when training diverges.
    Source   Joulin et al. 2016, arXiv 1607.01759 (bags of n-grams) and 1612.03651 (quantised).
    """
    try:
        model = fasttext.train_supervised(
            input=str(samples),
            dim=config.dimensions,
            lr=config.learning_rate,
            epoch=config.epochs,
            minn=config.shortest_gram,
            maxn=config.longest_gram,
            bucket=config.buckets,
            minCount=config.rarest_word,
            wordNgrams=1,
            loss="softmax",
            thread=1,
            seed=config.seed,
            verbose=0,
        )
    except RuntimeError as error:
        raise DataError(
            f"training broke off: {error}",
            where=f"learning_rate = {config.learning_rate}",
            fix="Lower learning_rate, or give more text",
        ) from None
    # Pairs of numbers share a code and each row keeps its norm: a norm left among the numbers
    # cost 13 points on short sentences (docs/log/2026-11-22-language-identification.md).
    model.quantize(qnorm=True, dsub=2, verbose=0)
    model.save_model(str(target))
