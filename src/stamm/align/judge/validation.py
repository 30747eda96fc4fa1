"""Validation of a judge: the share of pairs of degraded answers that it orders rightly.

Checked  tests/unit/align/test_judge_validation.py
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import read_examples
from stamm.align.data.examples import prompt_and_answers
from stamm.align.judge.charter import Article, conversation_text
from stamm.align.judge.config import ValidationConfig
from stamm.align.judge.judge import Judge, Unrated
from stamm.align.judge.rating import JudgedText, compare_texts, first_preferred, rate_texts
from stamm.align.records import BadRow
from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes
from stamm.statistics.intervals import wilson

FEWEST_WORDS = 20
_VERBS = re.compile(
    r"\b(is|are|was|were|can|could|should|will|would|may|might|must|has|have|does|do)\b(?! not\b)",
    re.I,
)
_REPEATED = 5
Words = list[str]
Step = Callable[[Words, random.Random, Words], Words]


def _truncate(words: Words, draw: random.Random, other: Words) -> Words:
    return words[: max(1, round(len(words) * 0.7))]


def _delete(share: float) -> Step:
    def step(words: Words, draw: random.Random, other: Words) -> Words:
        dropped = set(draw.sample(range(len(words)), max(1, round(len(words) * share))))
        return [word for position, word in enumerate(words) if position not in dropped]

    return step


def _contradict(words: Words, draw: random.Random, other: Words) -> Words:
    text = " ".join(words)
    negated = _VERBS.sub(lambda verb: f"{verb[0]} not", text)
    return ("" if negated != text else "None of this is true, the opposite is: ").split() + (
        negated.split()
    )


def _shuffle_locally(words: Words, draw: random.Random, other: Words) -> Words:
    parts = [words[start : start + 6] for start in range(0, len(words), 6)]
    for part in parts:
        draw.shuffle(part)
    return [word for part in parts for word in part]


def _repeat(words: Words, draw: random.Random, other: Words) -> Words:
    half = len(words) // 2
    phrase = words[:_REPEATED]
    return words[:half] + (phrase * len(words))[: len(words) - half]


def _shuffle(words: Words, draw: random.Random, other: Words) -> Words:
    mixed = list(words)
    draw.shuffle(mixed)
    return mixed


def _off_topic(words: Words, draw: random.Random, other: Words) -> Words:
    mixed = list(other)
    draw.shuffle(mixed)
    return mixed[: len(words)]


STEPS: tuple[tuple[str, Step], ...] = (
    ("truncated", _truncate),
    ("words deleted", _delete(0.15)),
    ("contradicted", _contradict),
    ("words shuffled locally", _shuffle_locally),
    ("more words deleted", _delete(0.3)),
    ("repeated", _repeat),
    ("words shuffled", _shuffle),
    ("off topic", _off_topic),
)
"""Name and function of each step, in the order in which they are applied."""


def chain(answer: str, other: str, steps: int) -> list[str]:
    """The answer and its degradations, `steps` + 1 texts, best first.

    other    an answer to another prompt, for the last step
    Raises   ValueError for an answer of fewer than 20 words
    """
    words = answer.split()
    if len(words) < FEWEST_WORDS:
        raise ValueError(f"fewer than {FEWEST_WORDS} words")
    draw = random.Random(sha256_bytes(f"{answer}\0{other}".encode()))
    texts = [answer]
    for _, step in STEPS[:steps]:
        words = step(list(words), draw, other.split())
        texts.append(" ".join(words))
    return texts


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
        if isinstance(example, BadRow):
            skipped += 1
            continue
        prompt, answers = prompt_and_answers(example)
        if len(answers) != 1:
            skipped += 1
            continue
        origin = example.origin
        name = f"{origin.file}, row {origin.row}"
        good.append((name, conversation_text(prompt), answers[0].text))
    chains: list[AnswerChain] = []
    for index, (name, conversation, answer) in enumerate(good):
        other = good[(index + 1) % len(good)][2] if len(good) > 1 else name
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
    width = len(chains[0].texts)
    texts = [
        JudgedText(answer_chain.conversation, text, f"{answer_chain.name}, step {step}")
        for answer_chain in chains
        for step, text in enumerate(answer_chain.texts)
    ]
    rated = rate_texts(
        judge, articles, dict(enumerate(texts)), len(texts), unrated, "degraded answers"
    )
    means = [None if rating is None else rating.mean for rating in rated]
    ratings = [means[start : start + width] for start in range(0, len(means), width)]
    names = ["good answer", *(name for name, _ in STEPS[: config.steps])]
    steps = []
    for step, name in enumerate(names):
        step_ratings = [rating for row in ratings if (rating := row[step]) is not None]
        mean = math.fsum(step_ratings) / len(step_ratings) if step_ratings else None
        steps.append({"name": name, "rated": len(step_ratings), "mean_rating": mean})
    pointwise = {
        (number, i, j): better - worse
        for number, row in enumerate(ratings)
        for (i, better), (j, worse) in itertools.combinations(enumerate(row), 2)
        if better is not None and worse is not None
    }
    measured: dict[str, Any] = {
        "steps": steps,
        "pointwise_adjacent": _share(v for (_, i, j), v in pointwise.items() if j == i + 1),
        "pointwise_all": _share(pointwise.values()),
    }
    if config.pairwise != "none":
        pairs = [
            (number, i, j)
            for number in range(len(chains))
            for i, j in itertools.combinations(range(width), 2)
            if config.pairwise == "all" or j == i + 1
        ]
        asked = {
            item: (_compared(chains[number], i, j), _compared(chains[number], j, i))
            for item, (number, i, j) in enumerate(pairs)
        }
        what = "comparisons of degraded answers"
        results, replies = compare_texts(judge, articles, asked, len(pairs), failed, what)
        preferences = {
            pair: result for pair, result in zip(pairs, results, strict=True) if result is not None
        }
        adjacent = [p - 0.5 for (_, i, j), p in preferences.items() if j == i + 1]
        measured["pairwise_adjacent"] = _share(adjacent)
        if config.pairwise == "all":
            measured["pairwise_all"] = _share(p - 0.5 for p in preferences.values())
        measured["first_preferred"] = first_preferred(replies)
    counts = {f"texts: {reason}": n for reason, n in unrated.counts().items()}
    counts |= {f"comparisons: {reason}": n for reason, n in failed.counts().items()}
    return {**measured, "unrated": counts}


def _compared(answer_chain: AnswerChain, step: int, other_step: int) -> JudgedText:
    return JudgedText(
        answer_chain.conversation,
        answer_chain.texts[step],
        f"{answer_chain.name}, steps {step} and {other_step}",
    )


def _share(differences: Iterable[float]) -> dict[str, Any]:
    values = list(differences)
    right, ties = sum(v > 0 for v in values), sum(v == 0 for v in values)
    low, high = wilson(right, len(values))
    return {"right": right, "ties": ties, "pairs": len(values), "low": low, "high": high}
