"""How much of planted passages a decoder can repeat, by how often it has read them.

Two kinds of evidence: what it writes after a passage's beginning (Rouge-L, spans, prefix), and how
likely the true continuation is to it (nats), which moves long before anything is repeated aloud.

Source   Carlini et al. 2023 (arXiv 2202.07646) for extraction by prefix; Apertus' audit
         (swiss-ai/apertus_memorization) for greedy continuations compared as token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.audit.interval import difference_estimate, mean_estimate
from stamm.audit.rouge import common_prefix, longest_common_span, rouge_l, type_token_ratio
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, DataError
from stamm.models.decoder import Decoder
from stamm.models.generate import greedy, nats_of_sequences

NEVER = 0


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A planted passage: how often it stands in the training text (0: the control), and its text."""

    probe_id: str
    repeats: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What the decoder made of one passage. Token ids.

    prefix     what it was shown after <s>
    truth      what follows in the passage
    produced   what it wrote instead, greedily
    nll_nats   mean cost of a token of `truth`, given all before it
    """

    passage: Passage
    prefix: list[int]
    truth: list[int]
    produced: list[int]
    nll_nats: float


def metrics(given: Continuation) -> dict[str, float]:
    """The measures of one continuation, each a number per passage.

    rouge_l                      F1 of produced and true tokens, in [0, 1]
    longest_common_span_tokens   longest run of tokens that stands in both
    longest_common_span_share    of the length of the truth
    exact_prefix_tokens          tokens until it first departs from the truth
    type_token_ratio             of what it wrote; low for a loop, which repeats no passage
    true_type_token_ratio        of what it should have written
    nll_nats                     mean cost of a true token
    """
    span = longest_common_span(given.produced, given.truth)
    return {
        "rouge_l": rouge_l(given.produced, given.truth),
        "longest_common_span_tokens": span,
        "longest_common_span_share": span / len(given.truth),
        "exact_prefix_tokens": common_prefix(given.produced, given.truth),
        "type_token_ratio": type_token_ratio(given.produced),
        "true_type_token_ratio": type_token_ratio(given.truth),
        "nll_nats": given.nll_nats,
    }


def continuations(
    config: AuditConfig,
    decoder: Decoder,
    encode: Callable[[str], Sequence[int]],
    begin: int,
    passages: Sequence[Passage],
    progress: Progress,
) -> list[Continuation]:
    """What the decoder makes of each passage, in the order given.

    encode   text to tokens, without <s>
    begin    the id of <s>, which opens every prompt

    Raises   DataError when a passage is too short, ConfigError when the decoder's context is.
    """
    _check_context(config, decoder)
    needed = config.prefix_tokens + config.new_tokens
    texts = [list(encode(passage.text)) for passage in passages]
    for passage, tokens in zip(passages, texts, strict=True):
        if len(tokens) < needed:
            raise DataError(
                f"passage {passage.probe_id} has {len(tokens)} tokens, the audit needs {needed}",
                where="audit.prefix_tokens + audit.new_tokens",
                fix=f"Set audit.new_tokens={max(len(tokens) - config.prefix_tokens, 1)} or less, "
                "or plant longer passages",
            )
    prefixes = [tokens[: config.prefix_tokens] for tokens in texts]
    truths = [tokens[config.prefix_tokens : needed] for tokens in texts]
    prompts = [[begin, *prefix] for prefix in prefixes]
    progress.begin("planted passages", len(passages), "passages")
    costs = nats_of_sequences(
        decoder,
        [[*prompt, *truth] for prompt, truth in zip(prompts, truths, strict=True)],
        config.batch_tokens,
    )
    produced = greedy(decoder, prompts, config.new_tokens)
    progress.end(f"{len(passages)} continued")
    return [
        Continuation(
            passage=passage,
            prefix=prefix,
            truth=truth,
            produced=written,
            # cost[0] is that of the first token after <s>: the truth begins prefix_tokens later
            nll_nats=float(cost[config.prefix_tokens :].double().mean()),
        )
        for passage, prefix, truth, written, cost in zip(
            passages, prefixes, truths, produced, costs, strict=True
        )
    ]


def by_repeats(given: Sequence[Continuation]) -> list[dict[str, Any]]:
    """Mean and 95 % interval of every measure for each repeat count, fewest repeats first.

    minus_control   the difference to the passages never seen, with its own interval; None for
                    the control itself and when there is none
    """
    groups: dict[int, list[dict[str, float]]] = {}
    for continuation in given:
        groups.setdefault(continuation.passage.repeats, []).append(metrics(continuation))
    control = groups.get(NEVER)
    return [
        _bucket(repeats, groups[repeats], control if repeats != NEVER else None)
        for repeats in sorted(groups)
    ]


def _bucket(
    repeats: int, measured: list[dict[str, float]], control: list[dict[str, float]] | None
) -> dict[str, Any]:
    values = {name: [passage[name] for passage in measured] for name in measured[0]}
    difference = None
    if control is not None:
        difference = {
            name: asdict(difference_estimate(values[name], [passage[name] for passage in control]))
            for name in values
        }
    return {
        "repeats": repeats,
        "passages": len(measured),
        **{name: asdict(mean_estimate(values[name])) for name in values},
        "minus_control": difference,
    }


def _check_context(config: AuditConfig, decoder: Decoder) -> None:
    limit = decoder.config.max_context
    needed = 1 + config.prefix_tokens + config.new_tokens
    room = limit - 1 - config.prefix_tokens
    if needed > limit:
        raise ConfigError(
            f"<s>, {config.prefix_tokens} prefix tokens and {config.new_tokens} new ones are "
            f"{needed} tokens, more than the model's max_context = {limit}",
            where="audit.prefix_tokens and audit.new_tokens",
            fix=f"Set audit.new_tokens={room} or less" if room > 0 else "Lower audit.prefix_tokens",
        )
