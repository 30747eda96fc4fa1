"""BLiMP, English minimal pairs: how often the grammatical sentence is the more likely one.

Source   Warstadt et al. 2020, BLiMP (TACL 8). The shipped pairs: evaluate/data/LICENSE.md
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from stamm.base.console import Progress
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value
from stamm.base.json_text import parse_json
from stamm.corpus.contamination.items import Item
from stamm.evaluate.blind import BlindSummary, blind_credits, unigram_log_probs
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.contamination import find_items
from stamm.evaluate.records import BlimpFile
from stamm.evaluate.task import TaskContext, TaskMetric, TaskResult, changed_name, ratio_metric
from stamm.models.decoder import Decoder
from stamm.models.generate import nats_of_sequences
from stamm.statistics.clustered_ratio import ClusteredRatio
from stamm.tokenizer.tokenizer import Tokenizer

SLICE = "data/blimp_slice.jsonl.zst"
CHANCE = 0.5


@dataclass(frozen=True, kw_only=True)
class MinimalPair:
    """Two sentences that differ in one point of grammar; `good` is grammatical, `bad` is not."""

    paradigm: str
    field: str
    phenomenon: str
    good: str
    bad: str


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """Score of a pair: 1 if `good` is more likely, 0 if `bad` is, 0.5 if they are equally likely."""

    pair: MinimalPair
    score: float


def shipped_pairs(per_paradigm: int) -> list[MinimalPair]:
    """The first `per_paradigm` shipped pairs of each of the 67 paradigms, paradigms in order."""
    packed = resources.files("stamm.evaluate").joinpath(SLICE).read_bytes()
    pairs: list[MinimalPair] = []
    taken: dict[str, int] = {}
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            pair = MinimalPair(**parse_json(line))
            taken[pair.paradigm] = taken.get(pair.paradigm, 0) + 1
            if taken[pair.paradigm] <= per_paradigm:
                pairs.append(pair)
    return pairs


def score_pairs(
    decoder: Decoder,
    encode: Callable[[str], Sequence[int]],
    begin: int,
    pairs: Sequence[MinimalPair],
    batch_tokens: int,
    progress: Progress,
) -> list[PairScore]:
    """The score of each pair, by the log-probability of the whole sentences.

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
    # A matrix product may round equal rows of a batch differently, by their position in it.
    same = [good == bad for good, bad in zip(sequences[::2], sequences[1::2], strict=True)]
    return [
        PairScore(pair=pair, score=CHANCE if equal else _score(good, bad))
        for pair, equal, good, bad in zip(pairs, same, nats[::2], nats[1::2], strict=True)
    ]


def summarize(given: Sequence[PairScore]) -> dict[str, Any]:
    """Accuracy in [0, 1] with its standard error, overall and by field, phenomenon and paradigm.

    standard_error = sqrt(accuracy (1 - accuracy) / pairs): of pairs drawn at random from these paradigms.
    Pairs of one paradigm resemble one another, so it is a lower bound for other English sentences; the
    metric of the task has the one over paradigms.

    Edge     chance is 0.5 exactly: a tie counts one half.
    """
    fields = {answer.pair.paradigm: answer.pair.field for answer in given}
    return {
        **_accuracy(given),
        "chance": CHANCE,
        "fields": _grouped(given, lambda pair: pair.field),
        "phenomena": _grouped(given, lambda pair: pair.phenomenon),
        "paradigms": {
            name: {"field": fields[name], **accuracy}
            for name, accuracy in _grouped(given, lambda pair: pair.paradigm).items()
        },
    }


def _score(good_nats: float, bad_nats: float) -> float:
    return CHANCE if good_nats == bad_nats else float(good_nats < bad_nats)


def _grouped(
    given: Sequence[PairScore], key: Callable[[MinimalPair], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[PairScore]] = {}
    for answer in given:
        groups.setdefault(key(answer.pair), []).append(answer)
    return {name: _accuracy(groups[name]) for name in sorted(groups)}


def _accuracy(given: Sequence[PairScore]) -> dict[str, Any]:
    accuracy = math.fsum(answer.score for answer in given) / len(given)
    return {
        "pairs": len(given),
        "accuracy": accuracy,
        "standard_error": math.sqrt(accuracy * (1 - accuracy) / len(given)),
    }


def blind_summary(
    given: Sequence[PairScore],
    encode: Callable[[str], Sequence[int]],
    unigram: NDArray[np.float64] | None,
) -> BlindSummary:
    """Blind baselines of the pairs: the longer or shorter sentence, token frequencies.

    unigram   log-probability of each token in the training text; None without one
    """
    summary = BlindSummary()
    for scored in given:
        sentences = scored.pair.good, scored.pair.bad
        ids = [encode(sentence) for sentence in sentences]
        summary.add(
            scored.score, blind_credits(sentences, ids, 0, None, unigram), scored.pair.paradigm
        )
    return summary


def accuracy_metric(given: Sequence[PairScore]) -> TaskMetric:
    """Accuracy with the standard error over paradigms, of which pairs are clusters."""
    ratio = ClusteredRatio()
    for scored in given:
        ratio.add(scored.score, cluster=scored.pair.paradigm)
    return ratio_metric(ratio, CHANCE)


class BlimpTask:
    """Accuracy on the shipped slice of BLiMP."""

    name = "blimp"
    record = BlimpFile

    def reads(self, config: EvaluateConfig) -> Sequence[str]:
        """The settings that change the result."""
        return ("blimp_pairs_per_paradigm",)

    def result_name(self, config: EvaluateConfig, usual: EvaluateConfig) -> str:
        """The name of the result files."""
        return changed_name(self.name, config, usual, {"blimp_pairs_per_paradigm": "pairs"})

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Score `config.blimp_pairs_per_paradigm` pairs of each paradigm.

        Raises   ConfigError as `score_pairs` does.
        """
        config = context.config
        pairs = shipped_pairs(config.blimp_pairs_per_paradigm)
        (begin, *_) = context.model.context_ids("")
        scores = score_pairs(
            model, tokenizer.encode, begin, pairs, config.batch_tokens, context.progress
        )
        summary = summarize(scores)
        texts = (
            Item(set_name=self.name, item_id=str(number), texts=(pair.good,))
            for number, pair in enumerate(pairs)
        )
        known = context.pack is not None and isinstance(tokenizer, Tokenizer)
        unigram = unigram_log_probs(context.pack) if known and context.pack is not None else None
        return TaskResult(
            metrics={"accuracy": accuracy_metric(scores)},
            num_items=len(scores),
            items=[{**asdict(scored.pair), "score": scored.score} for scored in scores],
            item_label="pairs",
            details={
                "metric": "accuracy",
                "source": "BLiMP (Warstadt et al. 2020)",
                "license": "CC-BY-4.0",
                "language": "eng_Latn",
                "pairs_per_paradigm": config.blimp_pairs_per_paradigm,
                "settings_sha256": sha256_value(config.blimp_pairs_per_paradigm),
                **find_items(self.name, texts, context.pack).details(),
                **blind_summary(scores, tokenizer.encode, unigram).details(CHANCE),
                **summary,
            },
        )
