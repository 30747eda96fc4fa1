"""Log-likelihoods of continuations given contexts, of whole texts, and greedy completions.

The continuations of one question share its context, which is computed once: they are in one row,
each sees the context and itself alone (an attention mask, and positions that begin again behind the
context). What all of them begin with belongs to the context, and what all contexts begin with, such as
examples, is computed once for all rows and kept as keys and values.

Rows are batched by length, by a fixed rule. In float32 on a CPU a log-likelihood does not depend on the
batch, to the bit: products are taken in blocks of rows, rows and what is shared have lengths that are multiples of
16, and batches are large enough for one form of the activation. On a GPU, and in other dtypes, beyond rounding.

Letters: B rows, T tokens of a row, S attended tokens, N scored tokens, D model, V vocabulary.
Checked  tests/unit/evaluate/test_scoring.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from stamm.activations.fused.operation import SMALLEST
from stamm.base.console import NoProgress, Progress
from stamm.base.errors import ConfigError
from stamm.losses.linear_cross_entropy import chunk_tokens
from stamm.models.attention import KVCache
from stamm.models.attention_mask import branch_attention_inputs
from stamm.models.batch_invariance import PADDED, BatchInvariant, padded_length
from stamm.models.decoder import Decoder
from stamm.models.loading import OpenModel
from stamm.models.padding import length_batches
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig

_ALL = -1


class Score(NamedTuple):
    """Score of a continuation.

    log_prob   sum of the log-probabilities of its tokens, in nats
    tokens     of it
    greedy     whether each is the most likely token
    """

    log_prob: float
    tokens: int
    greedy: bool


@dataclass(frozen=True)
class ScoringRequest:
    """A context and its continuations, as token ids."""

    context: list[int]
    continuations: list[list[int]]


@dataclass(kw_only=True)
class _Row:
    """A row of a batch: a context, then the continuations without their last tokens.

    number                  of the question
    places                  of each continuation: its places in the question; equal ones are scored once
    segment                 of each token: 0 for the context, then 1, 2, .. for the continuations
    source, target, owner   of each scored token: the place of the token before it, its id, and its
                            continuation; _ALL where all continuations begin with it
    """

    number: int
    places: list[list[int]]
    tokens: list[int]
    position: list[int]
    segment: list[int]
    source: list[int]
    target: list[int]
    owner: list[int]


@torch.no_grad()
def score_questions(
    decoder: Decoder,
    questions: Sequence[ScoringRequest],
    batch_tokens: int,
    progress: Progress | None = None,
) -> list[list[Score]]:
    """The score of every continuation of every question.

    log_prob = sum_t log softmax(logits(context, y[0] .. y[t-1]))[y[t]]

    batch_tokens   of one forward pass, padding included; a longer row runs alone
    progress       advanced by continuations

    Edge     a context is cut on the left where it and a continuation exceed max_context
    Raises   ConfigError for an empty context or continuation, and for a continuation longer than
             max_context.
    """
    decoder = decoder.merged()
    scores = [[Score(0.0, len(y), True) for y in question.continuations] for question in questions]
    cut = [_fitted(question, decoder.config.max_context) for question in questions]
    shared = _shared([request.context for parts in cut for request, _ in parts])
    rows = [
        row
        for number, parts in enumerate(cut)
        for request, numbers in parts
        for row in _rows(request, len(shared), number, numbers)
    ]
    with BatchInvariant():
        caches = _cached(decoder, shared)
    bar = NoProgress() if progress is None else progress
    done = 0
    for numbers in length_batches([len(row.tokens) for row in rows], batch_tokens):
        batch = [rows[number] for number in numbers]
        with BatchInvariant():
            log_prob_N, greedy_N = _forward(decoder, batch, caches, len(shared))
        scored = iter(zip(log_prob_N.double().tolist(), greedy_N.tolist(), strict=True))
        for row in batch:
            sums, greedy = [0.0] * (1 + len(row.places)), [True] * (1 + len(row.places))
            for owner in row.owner:
                log_prob, is_greedy = next(scored)
                sums[owner] += log_prob
                greedy[owner] &= is_greedy
            for owner, places in enumerate(row.places):
                for choice in places:
                    before = scores[row.number][choice]
                    scores[row.number][choice] = Score(
                        sums[owner] + sums[_ALL], before.tokens, greedy[owner] and greedy[_ALL]
                    )
                done += len(places)
        bar.advance(done)
    return scores


def loglikelihood(
    model: OpenModel, pairs: Sequence[tuple[str, str]], batch_tokens: int
) -> list[tuple[float, bool]]:
    """Log-likelihood of each continuation given its context, in nats, and whether it is the greedy one.

    pairs   (context, continuation); pairs of one context, one after another, share its computation
    """
    questions: list[ScoringRequest] = []
    before = None
    for context, continuation in pairs:
        first, rest = model.encode_pair(context, continuation)
        if before == first:
            questions[-1].continuations.append(rest)
        else:
            questions.append(ScoringRequest(first, [rest]))
        before = first
    scores = score_questions(model.decoder, questions, batch_tokens)
    return [(score.log_prob, score.greedy) for pair_scores in scores for score in pair_scores]


def loglikelihood_rolling(
    model: OpenModel, texts: Sequence[str], batch_tokens: int, *, begin_twice: bool = False
) -> list[float]:
    """Log-likelihood of each whole text, in nats.

    begin_twice   also what the tokenizer adds to a text, behind another token to begin with, as the
                  harness does: <s> <s> text, of which the second <s> is scored

    A text longer than max_context is divided into windows of new tokens; each sees as much before
    them as fits.

    Source   EleutherAI/lm-evaluation-harness, lm_eval/utils.py: get_rolling_token_windows with
             context_len = 1
    """
    limit = model.decoder.config.max_context
    questions, lengths = [], []
    for text in texts:
        begin = model.context_ids("")
        ids = [*begin, *model.tokenizer.encode(text)]
        if begin_twice and model.prefix:
            begin = begin[-1:]
            ids = [*begin, *ids]
        parts = list(_windows(len(begin), len(ids), limit))
        questions += [
            ScoringRequest(ids[start:scored], [ids[scored:stop]]) for start, scored, stop in parts
        ]
        lengths.append(len(parts))
    scores = iter(score_questions(model.decoder, questions, batch_tokens))
    return [sum(next(scores)[0].log_prob for _ in range(length)) for length in lengths]


def generate_until(
    model: OpenModel,
    contexts: Sequence[Sequence[int]],
    until: Sequence[str],
    max_new_tokens: int,
    slots: int = 32,
) -> list[str]:
    """The greedy completion of each context, up to the first of the texts `until`.

    contexts   token ids, cut on the left where they leave no room for max_new_tokens

    Edge       a completion ends at a stop token of the model or of its chat format, too; other control
               tokens are left out of the text
    Raises     ConfigError when max_new_tokens does not fit into the model's max_context
    """
    room = model.decoder.config.max_context - max_new_tokens
    if room < 1:
        raise ConfigError(
            f"max_new_tokens = {max_new_tokens} leaves no room for a context in max_context = "
            f"{model.decoder.config.max_context}",
            fix="Use fewer new tokens",
        )
    prompts = [list(context)[-room:] for context in contexts]
    config = SamplingConfig(temperature=0.0, max_new_tokens=max_new_tokens, slots=slots)
    texts = [""] * len(prompts)
    for done in sample(model.decoder, prompts, config, model.stop_ids):
        kept = done.tokens[:-1] if done.stopped else done.tokens
        text = model.tokenizer.decode([t for t in kept if model.tokenizer.control_token(t) is None])
        ends = [position for end in until if (position := text.find(end)) >= 0]
        texts[done.request] = text[: min(ends, default=len(text))]
    return texts


def token_scores(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of every target in nats, and whether it is the most likely token, each (N,)."""
    log_probs, greedy = [], []
    size = chunk_tokens(weight_VD.shape[0], weight_VD.device)
    for hidden_CD, target_C in zip(
        torch.split(hidden_ND, size), torch.split(target_N, size), strict=True
    ):
        logits_CV = F.linear(hidden_CD, weight_VD).float()
        chosen_C = logits_CV.gather(1, target_C[:, None])[:, 0]
        largest_C = logits_CV.amax(-1)
        greedy.append(chosen_C >= largest_C)
        # In place: the chunk stays in the cache.
        sum_C = logits_CV.sub_(largest_C[:, None]).exp_().sum(-1)
        log_probs.append(chosen_C - largest_C - sum_C.log())
    return torch.cat(log_probs), torch.cat(greedy)


def _fitted(request: ScoringRequest, limit: int) -> list[tuple[ScoringRequest, list[int]]]:
    """The question, or one for each continuation where the context must be cut, with their numbers."""
    for y in request.continuations:
        if not y or not request.context:
            raise ConfigError("a question has an empty context or continuation")
        if len(y) > limit:
            raise ConfigError(
                f"a continuation has {len(y)} tokens, more than max_context = {limit}"
            )
    longest = max(map(len, request.continuations), default=0)
    if len(request.context) + longest - 1 <= limit:
        return [(request, list(range(len(request.continuations))))]
    return [
        (ScoringRequest(request.context[-(limit + 1 - len(y)) :], [y]), [index])
        for index, y in enumerate(request.continuations)
    ]


def _shared(contexts: Sequence[list[int]]) -> list[int]:
    """The tokens that all contexts begin with, without the last token of any; [] where it is short."""
    if len(contexts) < 2:
        return []
    first, last = min(contexts), max(contexts)
    most = min(map(len, contexts)) - 1
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), most)
    return first[: min(same, most) // PADDED * PADDED]


def _rows(
    request: ScoringRequest, skipped: int, number: int, numbers: Sequence[int]
) -> Iterator[_Row]:
    """The row of a question, without the `skipped` first tokens of its context."""
    ys = request.continuations
    if not ys:
        return
    most = min(map(len, ys)) - 1
    same = 0
    while same < most and all(y[same] == ys[0][same] for y in ys):
        same += 1
    distinct: dict[tuple[int, ...], list[int]] = {}
    for choice, y in zip(numbers, ys, strict=True):
        distinct.setdefault(tuple(y[same:]), []).append(choice)
    context = request.context[skipped:]
    tokens = [*context, *ys[0][:same]]
    trunk = len(tokens)
    row = _Row(
        number=number,
        places=list(distinct.values()),
        tokens=tokens,
        position=list(range(skipped, skipped + trunk)),
        segment=[0] * trunk,
        source=list(range(len(context) - 1, trunk - 1)),
        target=list(ys[0][:same]),
        owner=[_ALL] * same,
    )
    for owner, rest in enumerate(distinct):
        begin = len(row.tokens)
        row.tokens += rest[:-1]
        row.position += range(skipped + trunk, skipped + trunk + len(rest) - 1)
        row.segment += [owner + 1] * (len(rest) - 1)
        row.source += [trunk - 1, *range(begin, begin + len(rest) - 1)]
        row.target += rest
        row.owner += [owner] * len(rest)
    yield row


def _cached(decoder: Decoder, shared: list[int]) -> list[KVCache] | None:
    if not shared:
        return None
    caches = [KVCache() for _ in decoder.model.layers]
    decoder.model(torch.tensor([shared], device=decoder.lm_head.weight.device), caches=caches)
    return caches


def _forward(
    decoder: Decoder, batch: Sequence[_Row], shared: list[KVCache] | None, start: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the scored tokens of a batch, and whether each is the greedy one."""
    weight = decoder.lm_head.weight
    longest = padded_length(max(len(row.tokens) for row in batch))
    # Rows of padding: on a GPU the fused kernels compute activations from SMALLEST numbers on.
    numbers = SMALLEST if weight.is_cuda else 0
    fewest = -(-numbers // (longest * decoder.config.ffn.width))
    unused = max(fewest - len(batch), 0)
    tokens_BT, position_BT, segment_BT = (
        torch.tensor(
            [[*part, *[fill] * (longest - len(part))] for part in (*parts, *[[]] * unused)],
            device=weight.device,
        )
        for parts, fill in (
            ([row.tokens for row in batch], 0),
            ([row.position for row in batch], 0),
            ([row.segment for row in batch], -1),
        )
    )
    caches = None
    if shared is not None:
        caches = [KVCache() for _ in shared]
        for cache, prefix_cache in zip(caches, shared, strict=True):
            if prefix_cache.keys is not None and prefix_cache.values is not None:
                cache.keys = prefix_cache.keys.expand(len(tokens_BT), -1, -1, -1)
                cache.values = prefix_cache.values.expand(len(tokens_BT), -1, -1, -1)
    attention = None
    if shared is not None or any(row.segment[-1] for row in batch):
        attention = branch_attention_inputs(
            decoder.model, position_BT, segment_BT, start, weight.dtype
        )
    hidden_BTD = decoder.model(tokens_BT, caches=caches, attention=attention)
    source_N = torch.tensor(
        [index * longest + source for index, row in enumerate(batch) for source in row.source],
        device=weight.device,
    )
    target_N = torch.tensor([token for row in batch for token in row.target], device=weight.device)
    return token_scores(hidden_BTD.flatten(0, 1)[source_N], weight, target_N)


def _windows(begin: int, length: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """First seen, first scored token and stop of each window, after `begin` tokens."""
    scored = begin
    while scored < length:
        stop = min(length, scored + limit if scored > begin else limit + 1)
        yield max(0, stop - 1 - limit), scored, stop
        scored = stop
