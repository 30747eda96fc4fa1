"""Reward of answers that repeat no long run of words of a corpus.

An answer shares a run of n words or more with the corpus exactly when one of its n-grams occurs there,
so the index is the sorted set of the hashes of all n-grams of the corpus. Words and their hashes are those
of deduplication and decontamination (`corpus.dedup.shingles`).

Checked  tests/unit/align/test_memorized.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from stamm.align.rewards.reward import Answer
from stamm.align.rewards.reward_config import NotMemorized
from stamm.align.rewards.sources import corpus_files
from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Response
from stamm.corpus.dedup.shingles import Hashes, hash_shingles, hash_words
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import UnreadableRecord
from stamm.corpus.tables import read_rows

_TRAIN = "train"
_MERGED_AT_ONCE = 1 << 24  # hashes that are kept apart before they are merged: 128 MiB


def n_gram_hashes(text: str, words: int) -> Hashes:
    """The hash of each run of `words` words of a text, in order."""
    return hash_shingles(hash_words(text).hashes, words)


def n_gram_index(texts: Iterable[str], words: int) -> Hashes:
    """The hashes of all runs of `words` words of the texts, sorted, each once.

    Memory   8 bytes for each different run, and as much again while they are merged
    """
    merged, waiting, count = np.empty(0, np.uint64), [np.empty(0, np.uint64)], 0
    for text in texts:
        waiting.append(np.unique(n_gram_hashes(text, words)))
        count += len(waiting[-1])
        if count >= _MERGED_AT_ONCE:
            merged, waiting, count = np.unique(np.concatenate([merged, *waiting])), [], 0
    return np.unique(np.concatenate([merged, *waiting]))


def shares_run(text: str, words: int, index: Hashes, but: Hashes) -> bool:
    """Whether a run of `words` words of the text occurs in the index.

    words   those of the index
    but     hashes of n-grams that do not count

    Edge     exact, but for two different n-grams with one hash of 64 bits
    """
    hashes = n_gram_hashes(text, words)
    if not len(hashes) or not len(index):
        return False
    places = np.minimum(np.searchsorted(index, hashes), len(index) - 1)
    shared = (index[places] == hashes) & ~np.isin(hashes, but)
    return bool(shared.any())


def corpus_texts(source: str, column: str) -> Iterator[str]:
    """The texts of a run's corpus (those that are trained on) or of a file.

    Raises   DataError for a record without text: an incomplete index would find copies clean.
    """
    files = corpus_files(source)
    if Path(source).is_dir():
        for file in files:
            for row in read_rows(file, ["text", "split"]):
                if row["split"] == _TRAIN:
                    yield row["text"]
        return
    (file,) = files
    if file.suffix == ".txt":
        yield file.read_text(encoding="utf-8", errors="replace")
        return
    for record in read_input(source, file, ReadLimits(), FieldNames(text=column)):
        if isinstance(record, UnreadableRecord):
            where = f"{source}, record {record.place.position}"
            raise DataError(f"{record.reason}: {record.detail}", where=where)
        yield record.content.decode("utf-8", errors="replace")


class NotMemorizedReward:
    """See `reward_config.NotMemorized`."""

    name = "not_memorized"

    def __init__(self, config: NotMemorized) -> None:
        self._config = config
        texts = (text for each in config.corpus for text in corpus_texts(each, config.column))
        self._index = n_gram_index(texts, config.words)
        if not len(self._index):
            raise DataError(
                f"{', '.join(config.corpus)}: no text has {config.words} words",
                fix="Name the corpus that the model was trained on",
            )

    def __call__(self, answer: Answer) -> float:
        """1 or 0."""
        text, words = answer.text, self._config.words
        if len(hash_words(text).hashes) < self._config.min_words:
            return 0.0
        quoted = [n_gram_hashes(each, words) for each in _prompt_texts(answer)]
        return float(not shares_run(text, words, self._index, np.concatenate(quoted)))


def _prompt_texts(answer: Answer) -> Iterator[str]:
    yield answer.prompt.system or ""
    for turn in answer.prompt.turns:
        if isinstance(turn, AssistantTurn):
            yield "".join(block.text for block in turn.blocks if isinstance(block, Response))
        else:
            yield turn.text
