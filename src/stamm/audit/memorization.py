"""Memorization of planted passages by a decoder, by the number of repeats in the training text.

Two kinds of measures: the greedy continuation of a passage's prefix (Rouge-L, spans, exact prefix), and
the negative log-likelihood of the true one (nats), which changes long before text is reproduced.

Source   Carlini et al. 2023 (arXiv 2202.07646) for extraction by prefix; Apertus' audit
         (swiss-ai/apertus_memorization) for greedy continuations compared as token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.audit.rouge import common_prefix, longest_common_span, type_token_ratio
from stamm.base.errors import ConfigError
from stamm.base.rouge import rouge_l
from stamm.models.decoder import Decoder
from stamm.models.generate import greedy, nats_of_sequences
from stamm.statistics.estimates import difference_estimate, mean_estimate

NEVER = 0


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A planted passage: its text and its number of repeats in the training text (0: the control).

    group   passages that may be compared with each other share it; "": those of the same language
    """

    probe_id: str
    repeats: int
    text: str
    language: str = ""
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A passage cut into prefix and truth, token ids.

    prefix   input of the decoder after <s>
    truth    true continuation of the prefix
    """

    passage: Passage
    prefix: list[int]
    truth: list[int]


@dataclass(frozen=True, kw_only=True)
class Continuation(Prompt):
    """The decoder's continuation of one passage.

    produced     greedy continuation of the prefix, token ids
    nll_nats     mean negative log-likelihood of a token of `truth`, given all before it
    total_nats   negative log-likelihood of prefix and truth, given <s>
    """

    produced: list[int]
    nll_nats: float
    total_nats: float

    @property
    def is_extracted(self) -> bool:
        """Whether the continuation equals the truth, token by token."""
        return self.produced == self.truth


def metrics(given: Continuation) -> dict[str, float]:
    """The measures of one continuation, each a number per passage.

    rouge_l                      F1 of produced and true tokens, in [0, 1]
    longest_common_span_tokens   longest run of tokens that occurs in both
    longest_common_span_share    of the length of the truth
    exact_prefix_tokens          tokens until the first difference from the truth
    type_token_ratio             of the continuation; low for a loop, which is not memorization
    true_type_token_ratio        of the truth
    nll_nats                     mean negative log-likelihood of a true token
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


def prompts(
    config: AuditConfig, encode: Callable[[str], Sequence[int]], passages: Sequence[Passage]
) -> list[Prompt]:
    """Prompts of the passages that are long enough for prefix and truth, in the order given.

    encode   text to tokens, without <s>
    """
    needed = config.prefix_tokens + config.new_tokens
    texts = ((passage, list(encode(passage.text))) for passage in passages)
    return [
        Prompt(
            passage=passage,
            prefix=tokens[: config.prefix_tokens],
            truth=tokens[config.prefix_tokens : needed],
        )
        for passage, tokens in texts
        if len(tokens) >= needed
    ]


def continuations(
    config: AuditConfig, decoder: Decoder, begin: Sequence[int], given: Sequence[Prompt]
) -> list[Continuation]:
    """The decoder's continuation of each passage, in the order given.

    begin    ids before every prompt, such as <s>
    """
    if not given:
        return []
    costs = nats_of_sequences(
        decoder, [[*begin, *prompt.prefix, *prompt.truth] for prompt in given], config.batch_tokens
    )
    produced = greedy(decoder, [[*begin, *prompt.prefix] for prompt in given], config.new_tokens)
    return [
        Continuation(
            passage=prompt.passage,
            prefix=prompt.prefix,
            truth=prompt.truth,
            produced=written,
            nll_nats=float(cost[-len(prompt.truth) :].double().mean()),
            total_nats=float(cost.double().sum()),
        )
        for prompt, written, cost in zip(given, produced, costs, strict=True)
    ]


def by_repeats(given: Sequence[Continuation]) -> list[dict[str, Any]]:
    """Mean and 95 % interval of every measure for each repeat count, fewest repeats first.

    extracted       number of passages reproduced token by token
    minus_control   difference to the passages never seen, with its own interval; None for the
                    control itself and without a control
    """
    groups = grouped(given)
    control = groups.get(NEVER)
    return [
        {
            "repeats": repeats,
            "passages": len(group),
            "extracted": sum(continuation.is_extracted for continuation in group),
            **_means(group),
            "minus_control": differences(group, control) if repeats != NEVER and control else None,
        }
        for repeats, group in sorted(groups.items())
    ]


def grouped(given: Sequence[Continuation]) -> dict[int, list[Continuation]]:
    """Continuations by the number of repeats of their passage in the training text."""
    groups: dict[int, list[Continuation]] = {}
    for continuation in given:
        groups.setdefault(continuation.passage.repeats, []).append(continuation)
    return groups


def differences(group: Sequence[Continuation], other: Sequence[Continuation]) -> dict[str, Any]:
    """Mean of every measure over `group` minus its mean over `other`, with an interval."""
    return {
        name: asdict(difference_estimate(values, others))
        for (name, values), others in zip(
            _columns(group).items(), _columns(other).values(), strict=True
        )
    }


def _means(group: Sequence[Continuation]) -> dict[str, Any]:
    return {name: asdict(mean_estimate(values)) for name, values in _columns(group).items()}


def _columns(group: Sequence[Continuation]) -> dict[str, list[float]]:
    measured = [metrics(continuation) for continuation in group]
    return {name: [row[name] for row in measured] for name in measured[0]}


def check_context(config: AuditConfig, decoder: Decoder, begin: int = 1) -> None:
    """Raise ConfigError when prefix and continuation do not fit into the decoder's context.

    begin   tokens before a prefix, such as <s>
    """
    limit = decoder.config.max_context
    needed = begin + config.prefix_tokens + config.new_tokens
    room = limit - begin - config.prefix_tokens
    if needed > limit:
        raise ConfigError(
            f"<s>, {config.prefix_tokens} prefix tokens and {config.new_tokens} new ones are "
            f"{needed} tokens, more than the model's max_context = {limit}",
            where="audit.prefix_tokens and audit.new_tokens",
            fix=f"Set audit.new_tokens={room} or less" if room > 0 else "Lower audit.prefix_tokens",
        )
