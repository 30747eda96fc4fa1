"""Chains of progressively degraded answers, to validate a judge.

Each step is applied to the text of the one before it, so that a later text is never better. The same
text gives the same chain on every machine. Negations are English; a text without an English verb
form that can be negated gets a sentence that contradicts it.

Source   Apertus technical report (arXiv 2509.14233), appendix: chains of nine answers, each worse than
         the last; its chains were written by a model, these by rules
Checked  tests/unit/align/test_degradation.py
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from stamm.base.files import sha256_bytes

FEWEST_WORDS = 20
_VERBS = re.compile(
    r"\b(is|are|was|were|can|could|should|will|would|may|might|must|has|have|does|do)\b(?! not\b)",
    re.I,
)
_REPEATED = 5


def _truncate(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    return words[: max(1, round(len(words) * 0.7))]


def _delete(share: float) -> Callable[[list[str], random.Random, Sequence[str]], list[str]]:
    def step(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
        dropped = set(draw.sample(range(len(words)), max(1, round(len(words) * share))))
        return [word for place, word in enumerate(words) if place not in dropped]

    return step


def _contradict(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    text = " ".join(words)
    negated = _VERBS.sub(lambda found: f"{found[0]} not", text)
    return ("" if negated != text else "None of this is true, the opposite is: ").split() + (
        negated.split()
    )


def _shuffle_locally(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    parts = [words[place : place + 6] for place in range(0, len(words), 6)]
    for part in parts:
        draw.shuffle(part)
    return [word for part in parts for word in part]


def _repeat(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    half = len(words) // 2
    phrase = words[:_REPEATED]
    return words[:half] + (phrase * len(words))[: len(words) - half]


def _shuffle(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    mixed = list(words)
    draw.shuffle(mixed)
    return mixed


def _off_topic(words: list[str], draw: random.Random, other: Sequence[str]) -> list[str]:
    mixed = list(other)
    draw.shuffle(mixed)
    return mixed[: len(words)]


STEPS: tuple[tuple[str, Callable[[list[str], random.Random, Sequence[str]], list[str]]], ...] = (
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
