"""Held-out loss: nats of every token, summed by document and by language; bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stamm.base.console import Progress
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value
from stamm.corpus.ledger import check_held_out
from stamm.corpus.packed_dataset import PackedSplit
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.fairness import language_fairness
from stamm.evaluate.records import DocumentLoss, HeldOutFile
from stamm.evaluate.task import TaskContext, TaskMetric, TaskResult, changed_name, ratio_metric
from stamm.models.decoder import Decoder
from stamm.models.generate import nats_of_sequences
from stamm.statistics.clustered_ratio import ClusteredRatio
from stamm.tokenizer.tokenizer import Tokenizer

RULE = (
    "Every token of a document after its <s>, the closing </s> included, given all before it. A"
    " document longer than the context is read in windows: a later one begins with `overlap`"
    " tokens of the one before, which are seen and not counted again; no <s> is put before them."
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A sliding window: a part of a document that fits into the context.

    start, stop   its tokens
    scored        the first token that is scored; those before it are context only
    """

    start: int
    scored: int
    stop: int


def windows(length: int, context: int, overlap: int) -> list[Window]:
    """The sliding windows over a document of `length` tokens.

    Each sees at most `context` tokens before the last one that it scores. Every token but the
    first is scored once, and every token beyond the first window follows at least `overlap` seen.

    Checked  tests/unit/evaluate/test_held_out.py::test_windows_score_every_token_once
    """
    sliding = [Window(start=0, scored=1, stop=min(length, context + 1))]
    while sliding[-1].stop < length:
        scored = sliding[-1].stop
        start = scored - overlap
        sliding.append(Window(start=start, scored=scored, stop=min(length, start + context + 1)))
    return sliding


def document_losses(
    config: EvaluateConfig, decoder: Decoder, split: PackedSplit, progress: Progress
) -> list[DocumentLoss]:
    """The held-out loss of each document of the split, in the order in which they are packed.

    Raises   DataError when the split holds no document; ConfigError when `config.context`
             exceeds the model's max_context, or `config.overlap` does not fit into the context.
    """
    documents = split.documents().to_pylist()
    check_held_out(len(documents))
    return losses_of_documents(config, decoder, split, documents, progress)


def losses_of_documents(
    config: EvaluateConfig,
    decoder: Decoder,
    split: PackedSplit,
    documents: Sequence[Mapping[str, Any]],
    progress: Progress,
) -> list[DocumentLoss]:
    """The loss of some documents of a split, in their order.

    documents   rows with document_id, language, start, stop and bytes
    """
    texts = (split.read(document["start"], document["stop"]).tolist() for document in documents)
    nats = nats_of_texts(config, decoder, texts, progress)
    progress.end(f"{len(documents)} documents")
    return [
        DocumentLoss(
            document_id=document["document_id"],
            language=document["language"],
            tokens=document["stop"] - document["start"] - 1,
            bytes=document["bytes"],
            nats=total,
        )
        for document, total in zip(documents, nats, strict=True)
    ]


def nats_of_texts(
    config: EvaluateConfig, decoder: Decoder, texts: Iterable[list[int]], progress: Progress
) -> list[float]:
    """Negative log-likelihood of the tokens of each text after its first, by RULE, in nats.

    Raises   ConfigError as `document_losses` does
    """
    context, overlap = context_and_overlap(config, decoder)
    parts: list[tuple[int, Window]] = []
    sequences: list[list[int]] = []
    for number, tokens in enumerate(texts):
        for window in windows(len(tokens), context, overlap):
            parts.append((number, window))
            sequences.append(tokens[window.start : window.stop])
    progress.begin("held-out text", sum(len(s) - 1 for s in sequences), "tokens")
    costs = nats_of_sequences(decoder, sequences, config.batch_tokens, progress)
    nats = [0.0] * (parts[-1][0] + 1 if parts else 0)
    for (number, window), cost in zip(parts, costs, strict=True):
        # cost[0] belongs to token start + 1
        nats[number] += float(cost[window.scored - window.start - 1 :].double().sum())
    return nats


def context_and_overlap(config: EvaluateConfig, decoder: Decoder) -> tuple[int, int]:
    """Context and overlap in tokens; the model's max_context and half of it where not configured.

    Raises   ConfigError when they do not fit the model or one another.
    """
    limit = decoder.config.max_context
    context = limit if config.context is None else config.context
    if context > limit:
        raise ConfigError(
            f"context = {context} exceeds the model's max_context = {limit}",
            where="evaluate.context",
            fix=f"Set evaluate.context={limit} or less",
        )
    overlap = context // 2 if config.overlap is None else config.overlap
    if overlap >= context:
        raise ConfigError(
            f"overlap = {overlap} leaves nothing new in a context of {context} tokens",
            where="evaluate.overlap",
            fix=f"Set evaluate.overlap below {context}",
        )
    return context, overlap


def summarize(costs: Sequence[DocumentLoss]) -> dict[str, Any]:
    """Sums and rates over `costs`: documents, tokens, bytes, nats, loss and bits per byte.

    loss_nats       nats / tokens
    bits_per_byte   nats / (ln 2 * bytes): it compares models with different vocabularies
    loss_nats_standard_error   of loss_nats as a ratio of sums over documents drawn at random:
                    sqrt(n / (n - 1) * sum_i (nats_i - loss_nats * tokens_i)^2) / tokens;
                    None for a single document

    Source   Cochran 1977, Sampling Techniques, section 6.4 (ratio estimate, whole population large)
    """
    tokens = sum(cost.tokens for cost in costs)
    nats = math.fsum(cost.nats for cost in costs)
    size = sum(cost.bytes for cost in costs)
    loss = nats / tokens
    error = None
    if len(costs) > 1:
        squares = math.fsum((cost.nats - loss * cost.tokens) ** 2 for cost in costs)
        error = math.sqrt(len(costs) / (len(costs) - 1) * squares) / tokens
    return {
        "documents": len(costs),
        "tokens": tokens,
        "bytes": size,
        "nats": nats,
        "loss_nats": loss,
        "loss_nats_standard_error": error,
        "bits_per_byte": nats / (math.log(2) * size),
    }


def by_language(costs: Sequence[DocumentLoss]) -> dict[str, dict[str, Any]]:
    """`summarize` of each language's documents, by the name of the language."""
    groups: dict[str, list[DocumentLoss]] = {}
    for cost in costs:
        groups.setdefault(cost.language, []).append(cost)
    return {language: summarize(groups[language]) for language in sorted(groups)}


def bits_metric(costs: Sequence[DocumentLoss]) -> TaskMetric:
    """Bits per byte with its standard error as a ratio of sums over documents drawn at random."""
    ratio = ClusteredRatio()
    for cost in costs:
        ratio.add(cost.nats / math.log(2), float(cost.bytes))
    return ratio_metric(ratio)


def loss_metric(costs: Sequence[DocumentLoss]) -> TaskMetric:
    """Nats per token, as `bits_metric`."""
    ratio = ClusteredRatio()
    for cost in costs:
        ratio.add(cost.nats, float(cost.tokens))
    return ratio_metric(ratio)


class HeldOutTask:
    """Loss and bits per byte of the held-out split of the packed corpus."""

    name = "held_out"
    record = HeldOutFile

    def reads(self, config: EvaluateConfig) -> Sequence[str]:
        """The settings that change the result."""
        return ("context", "overlap")

    def result_name(self, config: EvaluateConfig, usual: EvaluateConfig) -> str:
        """The name of the result files."""
        return changed_name(self.name, config, usual, {"context": "context", "overlap": "overlap"})

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Score every held-out document.

        Raises   as `document_losses` does.
        """
        length, overlap = context_and_overlap(context.config, model)
        if context.pack is None:
            raise ConfigError(
                "held_out reads the held-out text of a run's packed corpus, and there is none",
                where="evaluate.tasks",
                fix="Leave held_out out of tasks, or score texts of your own (docs/evaluation.md)",
            )
        split = PackedSplit.open(context.pack, "held_out")
        costs = document_losses(context.config, model, split, context.progress)
        overall, languages = summarize(costs), by_language(costs)
        return TaskResult(
            metrics={
                "loss_nats": loss_metric(costs),
                "bits_per_byte": bits_metric(costs),
            },
            num_items=len(costs),
            items=[asdict(cost) for cost in costs],
            item_label="documents",
            details={
                "context": length,
                "overlap": overlap,
                "settings_sha256": sha256_value([length, overlap, RULE]),
                "rule": RULE,
                "overall": overall,
                "languages": languages,
                "fairness": language_fairness(
                    "bits_per_byte",
                    {name: metrics["bits_per_byte"] for name, metrics in languages.items()},
                ),
            },
        )
