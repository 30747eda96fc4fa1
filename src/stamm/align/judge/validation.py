"""Validation of a judge: the share of pairs of degraded answers that it orders rightly.

Checked  tests/unit/align/test_judge_validation.py
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import read_examples
from stamm.align.data.examples import ChatExample, RatedAnswer, last_answer
from stamm.align.judge.charter import Article
from stamm.align.judge.degradation import STEPS, chain
from stamm.align.judge.judge import Judge, JudgeQuestion, Unrated
from stamm.align.judge.judge_config import ValidationConfig
from stamm.align.judge.judge_prompt import (
    answer_text,
    comparison_request,
    conversation_text,
    rating_request,
)
from stamm.align.judge.request import JudgeReply
from stamm.base.errors import DataError
from stamm.chat.conversation import before_last_turn


@dataclass(frozen=True)
class AnswerChain:
    """A prompt and its answers, best first."""

    name: str
    conversation: str
    texts: tuple[str, ...]


def read_chains(path: Path, config: ValidationConfig) -> tuple[list[AnswerChain], int]:
    """The chains of a file of good answers, and the number of rows that gave none.

    Raises   DataError when no row gives a chain
    """
    good: list[tuple[str, str, str]] = []
    skipped = 0
    for example in read_examples(path):
        if isinstance(example, ChatExample):
            whole = example.conversation
            prompt = before_last_turn(whole)
            answer = answer_text(last_answer(whole))
        elif isinstance(example, RatedAnswer):
            prompt, answer = example.prompt, answer_text(example.completion)
        else:
            skipped += 1
            continue
        origin = example.origin
        name = f"{origin.file}, row {origin.row}"
        good.append((name, conversation_text(prompt), answer))
    chains: list[AnswerChain] = []
    for place, (name, conversation, answer) in enumerate(good):
        other = good[(place + 1) % len(good)][2] if len(good) > 1 else name
        try:
            texts = chain(answer, other, config.steps)
        except ValueError:
            skipped += 1
            continue
        if len(set(texts)) == len(texts):
            chains.append(AnswerChain(name, conversation, tuple(texts)))
        else:
            skipped += 1
        if len(chains) == config.chains:
            break
    if not chains:
        raise DataError(
            f"{path} has no answer from which a chain can be made ({skipped} rows)",
            where="validation.good_answers",
            fix="Give answers of at least 20 words",
        )
    return chains, skipped


def validate_judge(
    judge: Judge,
    articles: Sequence[Article],
    chains: Sequence[AnswerChain],
    config: ValidationConfig,
) -> dict[str, Any]:
    """Rate and compare the answers of the chains; the measured fields of `JudgeFile`.

    Raises   as `Judge.ask`
    """
    unrated, failed = Unrated(), Unrated()
    ratings = _ratings(judge, articles, chains, unrated)
    names = ["good answer", *(name for name, _ in STEPS[: config.steps])]
    steps = []
    for place, name in enumerate(names):
        here = [row[place] for row in ratings if row[place] is not None]
        mean = math.fsum(here) / len(here) if here else None
        steps.append({"name": name, "rated": len(here), "mean_rating": mean})
    pointwise = {
        (number, i, j): row[i] - row[j]
        for number, row in enumerate(ratings)
        for i, j in itertools.combinations(range(len(row)), 2)
        if row[i] is not None and row[j] is not None
    }
    found: dict[str, Any] = {
        "steps": steps,
        "pointwise_adjacent": _share(v for (_, i, j), v in pointwise.items() if j == i + 1),
        "pointwise_all": _share(pointwise.values()),
    }
    if config.pairwise != "none":
        preferences, first = _comparisons(judge, articles, chains, config, failed)
        adjacent = [p - 0.5 for (_, i, j), p in preferences.items() if j == i + 1]
        found["pairwise_adjacent"] = _share(adjacent)
        if config.pairwise == "all":
            found["pairwise_all"] = _share(p - 0.5 for p in preferences.values())
        found["first_preferred"] = first
    counts = {f"texts: {reason}": n for reason, n in unrated.counts().items()}
    counts |= {f"comparisons: {reason}": n for reason, n in failed.counts().items()}
    return {**found, "unrated": counts}


def wilson(right: float, pairs: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of a share of `pairs` independent trials; (0, 1) without any.

    Source   Wilson 1927, Journal of the American Statistical Association 22
    """
    if pairs == 0:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / pairs
    scale = 1 + z * z / pairs
    centre = (share + z * z / (2 * pairs)) / scale
    reach = z / scale * math.sqrt(share * (1 - share) / pairs + z * z / (4 * pairs * pairs))
    # exact ends: rounding may leave the share outside
    low = 0.0 if right == 0 else centre - reach
    return low, 1.0 if right == pairs else centre + reach


def preference(forward: JudgeReply, backward: JudgeReply) -> float:
    """Probability that the first answer is better, over both orders of presentation.

    forward    the reply where it is presented first; `backward`: second

    A preference for a position counts once for each answer, and cancels.
    """
    here = forward.probabilities.get("1", 0.0) / forward.mass
    there = backward.probabilities.get("2", 0.0) / backward.mass
    return (here + there) / 2


def first_preferred(replies: Iterable[JudgeReply]) -> float | None:
    """Mean probability of the answer presented first; None without replies."""
    shares = [reply.probabilities.get("1", 0.0) / reply.mass for reply in replies]
    return math.fsum(shares) / len(shares) if shares else None


def _ratings(
    judge: Judge, articles: Sequence[Article], chains: Sequence[AnswerChain], unrated: Unrated
) -> list[list[Any]]:
    """The mean rating of each text of each chain; None for an unrated one."""
    questions = []
    texts = [(each, place) for each in chains for place in range(len(each.texts))]
    for item, (each, place) in enumerate(texts):
        subject = f"{each.name}, step {place}"
        questions += [
            JudgeQuestion(
                item, rating_request(article, each.conversation, each.texts[place], subject)
            )
            for article in articles
        ]
    replies = judge.ask(questions, len(texts), unrated, "degraded answers")
    scores: dict[int, list[float]] = {}
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None:
            scores.setdefault(question.item, []).append(reply.mean())
    means = [
        math.fsum(scores[item]) / len(articles) if item not in unrated.reasons else None
        for item in range(len(texts))
    ]
    width = len(chains[0].texts)
    return [means[start : start + width] for start in range(0, len(means), width)]


def _comparisons(
    judge: Judge,
    articles: Sequence[Article],
    chains: Sequence[AnswerChain],
    config: ValidationConfig,
    failed: Unrated,
) -> tuple[Mapping[tuple[int, int, int], float], float | None]:
    """The preference for the better text of each pair, and the mean preference for the first place."""
    pairs = [
        (number, i, j)
        for number, each in enumerate(chains)
        for i, j in itertools.combinations(range(len(each.texts)), 2)
        if config.pairwise == "all" or j == i + 1
    ]
    questions = []
    for item, (number, i, j) in enumerate(pairs):
        each = chains[number]
        for first, second in ((i, j), (j, i)):
            request = comparison_request(
                articles,
                each.conversation,
                each.texts[first],
                each.texts[second],
                f"{each.name}, steps {first} and {second}",
            )
            questions.append(JudgeQuestion(item, request))
    replies = judge.ask(questions, len(pairs), failed, "comparisons of degraded answers")
    found = {}
    for item, pair in enumerate(pairs):
        forward, backward = replies[2 * item], replies[2 * item + 1]
        if forward is not None and backward is not None:
            found[pair] = preference(forward, backward)
    return found, first_preferred(reply for reply in replies if reply is not None)


def _share(differences: Iterable[float]) -> dict[str, Any]:
    values = list(differences)
    right, ties = sum(v > 0 for v in values), sum(v == 0 for v in values)
    low, high = wilson(right, len(values))
    return {"right": right, "ties": ties, "pairs": len(values), "low": low, "high": high}
