"""MinHash signatures: an unbiased estimate of Jaccard similarity, stable over time and machines."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from stamm.base.errors import ConfigError
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import EMPTY_VALUE, Signature, hash_words, minhash

CONFIG = DedupConfig()


def sign(text: str) -> Signature:
    return minhash(hash_words(text), CONFIG)


def plain(text: str, config: DedupConfig) -> list[int]:
    """The definition again in whole numbers of Python, run by run."""

    def mix(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return value ^ value >> 31

    golden = 0x9E3779B97F4A7C15
    words = [int(number) for number in hash_words(text).hashes]
    length = min(config.shingle_words, len(words))
    runs = []
    for begin in range(len(words) - length + 1):
        key = 0
        for word in words[begin : begin + length]:
            key = (key * golden + word) % 2**64
        runs.append(mix(key))
    draws = [mix((state + golden) % 2**64) for state in range(2 * config.hashes)]
    factors, offsets = draws[: config.hashes], draws[config.hashes :]
    return [
        min(((a | 1) * run + b) % 2**64 for run in runs) >> 32
        for a, b in zip(factors, offsets, strict=True)
    ]


@pytest.mark.parametrize("words", [1, 4, 5, 6, 700])
def test_the_definition_in_plain_numbers(words: int) -> None:
    text = " ".join(random.Random(words).choices("abcdefghij", k=words))
    assert sign(text).tolist() == plain(text, CONFIG)


def test_the_estimate_is_unbiased() -> None:
    # 60 pairs with a known share of runs; the mean of n estimates has 1/sqrt(n) of one's error.
    for shared in (0.5, 0.75, 0.9):
        errors = []
        for seed in range(60):
            draw = random.Random(f"{shared} {seed}")
            words = [str(draw.random()) for _ in range(1000)]
            changed = words[: int(1000 * shared)] + [str(draw.random()) for _ in range(200)]
            one, other = (
                {tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (words, changed)
            )
            truth = len(one & other) / len(one | other)
            errors.append(np.mean(sign(" ".join(words)) == sign(" ".join(changed))) - truth)
        one_error = (0.25 / CONFIG.hashes) ** 0.5
        assert abs(np.mean(errors)) < 4 * one_error / 60**0.5
        assert np.std(errors) < 1.5 * one_error


def test_texts_without_words_are_similar_to_nothing() -> None:
    assert set(sign("!!! ...").tolist()) == {int(EMPTY_VALUE)}
    assert not np.any(sign("") == sign("one two"))


def test_another_process_gives_the_same_bytes() -> None:
    code = (
        "from stamm.corpus.dedup.config import DedupConfig\n"
        "from stamm.corpus.dedup.shingles import minhash\n"
        "from stamm.corpus.dedup.shingles import hash_words\n"
        "print(minhash(hash_words('Grüezi mitenand, 你好世界'), DedupConfig()).tobytes().hex())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == sign("Grüezi mitenand, 你好世界").tobytes().hex()


def test_refused_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"bands = 0 .*threshold = 1\.5"):
        DedupConfig(bands=0, threshold=1.5)
