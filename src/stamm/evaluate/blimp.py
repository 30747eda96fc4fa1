"""English minimal pairs: does the model find the grammatical sentence more likely?

Source   Warstadt et al. 2020, BLiMP (TACL 8). The shipped pairs: evaluate/data/LICENSE.md
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import zstandard

from stamm.base.console import Progress
from stamm.base.errors import ConfigError
from stamm.models.decoder import Decoder
from stamm.models.generate import nats_of_sequences

SLICE = "data/blimp_slice.jsonl.zst"
CHANCE = 0.5


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sentences that differ in one point of grammar: the first is right, the second wrong."""

    paradigm: str
    field: str
    phenomenon: str
    good: str
    bad: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model thinks of a pair: 1 right, 0 wrong, 0.5 when both are equally likely to it."""

    pair: Pair
    score: float


def shipped_pairs(per_paradigm: int) -> list[Pair]:
    """The first `per_paradigm` shipped pairs of each of the 67 paradigms, paradigms in order."""
    packed = resources.files(__package__).joinpath(SLICE).read_bytes()
    pairs: list[Pair] = []
    taken: dict[str, int] = {}
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            pair = Pair(**json.loads(line))
            taken[pair.paradigm] = taken.get(pair.paradigm, 0) + 1
            if taken[pair.paradigm] <= per_paradigm:
                pairs.append(pair)
    return pairs


def answers(
    decoder: Decoder,
    encode: Callable[[str], Sequence[int]],
    begin: int,
    pairs: Sequence[Pair],
    batch_tokens: int,
    progress: Progress,
) -> list[Answer]:
    """What the model thinks of each pair, by the log-probability of the whole sentence.

    score = 1 when log p(good | <s>) > log p(bad | <s>), both summed over tokens, no </s> at the
    end; 1/2 where both are the same tokens, or equally likely

    encode   text to tokens, without <s>
    begin    the id of <s>

    Raises   ConfigError when a sentence is longer than the decoder's context.
    """
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    sequences = [[begin, *encode(sentence)] for sentence in sentences]
    limit = decoder.config.max_context
    for sentence, sequence in zip(sentences, sequences, strict=True):
        if len(sequence) - 1 > limit:
            raise ConfigError(
                f"{sentence!r} has {len(sequence) - 1} tokens, more than the model's max_context = "
                f"{limit}",
                where="a minimal pair",
                fix="Train with a larger model.max_context, or a larger tokenizer.vocab_size",
            )
    progress.begin("minimal pairs", sum(len(s) - 1 for s in sequences), "tokens")
    costs = nats_of_sequences(decoder, sequences, batch_tokens, progress)
    nats = [float(cost.double().sum()) for cost in costs]
    progress.end(f"{len(pairs)} pairs")
    # A matrix product may round equal rows of a batch differently, by their place in it.
    same = [good == bad for good, bad in zip(sequences[::2], sequences[1::2], strict=True)]
    return [
        Answer(pair=pair, score=CHANCE if equal else _score(good, bad))
        for pair, equal, good, bad in zip(pairs, same, nats[::2], nats[1::2], strict=True)
    ]


def summarise(given: Sequence[Answer]) -> dict[str, Any]:
    """Accuracy in [0, 1] with its standard error, overall and by field, phenomenon and paradigm.

    standard_error = sqrt(accuracy (1 - accuracy) / pairs): of pairs drawn at random. Pairs of one
    paradigm resemble one another, so it is a lower bound for other English sentences.

    Edge     chance is 0.5 exactly: a tie counts one half.
    """
    return {
        **_accuracy(given),
        "chance": CHANCE,
        "fields": _grouped(given, lambda pair: pair.field),
        "phenomena": _grouped(given, lambda pair: pair.phenomenon),
        "paradigms": _grouped(given, lambda pair: pair.paradigm),
    }


def _score(good_nats: float, bad_nats: float) -> float:
    return CHANCE if good_nats == bad_nats else float(good_nats < bad_nats)


def _grouped(given: Sequence[Answer], key: Callable[[Pair], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Answer]] = {}
    for answer in given:
        groups.setdefault(key(answer.pair), []).append(answer)
    return {name: _accuracy(groups[name]) for name in sorted(groups)}


def _accuracy(given: Sequence[Answer]) -> dict[str, Any]:
    accuracy = math.fsum(answer.score for answer in given) / len(given)
    return {
        "pairs": len(given),
        "accuracy": accuracy,
        "standard_error": math.sqrt(accuracy * (1 - accuracy) / len(given)),
    }
