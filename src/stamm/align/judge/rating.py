"""Ratings of answers by the articles of a charter, and the order of the best by comparisons.

Checked  tests/unit/align/test_judge.py, tests/cli/test_charter_command.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stamm.align.judge.charter import Article
from stamm.align.judge.judge import Judge, JudgeQuestion, Unrated
from stamm.align.judge.judge_config import RatingConfig
from stamm.align.judge.judge_prompt import comparison_request, rating_request
from stamm.align.judge.ranking import TranspositionSort, by_rating, ranks, repeated_ranks
from stamm.align.judge.rated_answers import JudgedAnswer
from stamm.align.judge.request import JudgeReply
from stamm.align.judge.validation import preference


@dataclass(frozen=True)
class AnswerRating:
    """Scores of an answer and the probability of the digits together, by number of the article."""

    scores: Mapping[int, float]
    masses: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Mean over the articles."""
        return math.fsum(self.scores.values()) / len(self.scores)


@dataclass
class ComparisonCount:
    """Comparisons of a run.

    replies   in both orders of presentation
    failed    comparisons without a result
    """

    asked: int = 0
    failed: int = 0
    replies: list[JudgeReply] = field(default_factory=list)


def rate(
    judge: Judge,
    articles: Sequence[Article],
    answers: Sequence[JudgedAnswer],
    config: RatingConfig,
    unrated: Unrated,
) -> list[AnswerRating | None]:
    """The rating of each answer; None for one that is in `unrated` afterwards.

    Raises   as `Judge.ask`
    """
    questions: list[JudgeQuestion] = []
    numbers: list[int] = []
    for item, answer in enumerate(answers):
        if reason := _unsuitable(answer, config):
            unrated.add(item, reason, answer.subject)
            continue
        for article in articles:
            request = rating_request(article, answer.conversation, answer.text, answer.subject)
            questions.append(JudgeQuestion(item, request))
            numbers.append(article.number)
    replies = judge.ask(questions, len(answers), unrated, "answers")
    scores: dict[int, dict[int, float]] = {}
    masses: dict[int, dict[int, float]] = {}
    for question, number, reply in zip(questions, numbers, replies, strict=True):
        if reply is not None:
            scores.setdefault(question.item, {})[number] = reply.mean()
            masses.setdefault(question.item, {})[number] = reply.mass
    return [
        None if item in unrated.reasons else AnswerRating(scores[item], masses[item])
        for item in range(len(answers))
    ]


def rank_answers(
    judge: Judge,
    articles: Sequence[Article],
    answers: Sequence[JudgedAnswer],
    ratings: Sequence[AnswerRating | None],
    config: RatingConfig,
) -> tuple[list[float | None], ComparisonCount]:
    """The rank of each rated answer among those of its prompt, 1 for the best; None for others.

    Equal answers to a prompt are compared once and share their rank. Comparisons of all prompts are
    asked together, a round of the sort at a time.

    Raises   as `Judge.ask`
    """
    groups: dict[int, dict[str, list[int]]] = {}
    for item, (answer, rating) in enumerate(zip(answers, ratings, strict=True)):
        if rating is not None:
            groups.setdefault(answer.prompt, {}).setdefault(answer.text, []).append(item)
    members = {prompt: list(texts.values()) for prompt, texts in groups.items()}
    means = {
        prompt: [_mean_of(ratings, same[0]) for same in items] for prompt, items in members.items()
    }
    sorts = {
        prompt: TranspositionSort(by_rating(means[prompt])[: config.top]) for prompt in members
    }
    count = ComparisonCount()
    total = _most_comparisons(sorts)
    failed = Unrated()
    while wanted := [(prompt, pair) for prompt, sort in sorts.items() for pair in sort.pairs()]:
        questions = []
        for item, (prompt, pair) in enumerate(wanted, count.asked):
            first, second = (answers[members[prompt][each][0]] for each in pair)
            for one, other in ((first, second), (second, first)):
                subject = f"{one.subject} and {other.origin.row}"
                request = comparison_request(
                    articles, one.conversation, one.text, other.text, subject
                )
                questions.append(JudgeQuestion(item, request))
        replies = judge.ask(questions, total, failed, "comparisons")
        for place, (prompt, pair) in enumerate(wanted):
            forward, backward = replies[2 * place], replies[2 * place + 1]
            better = True  # as the ratings have it
            if forward is not None and backward is not None:
                better = preference(forward, backward) >= 0.5
            sorts[prompt].decide(pair, better)
        count.asked += len(wanted)
        count.replies += [reply for reply in replies if reply is not None]
    count.failed = len(failed.reasons)
    found: list[float | None] = [None] * len(answers)
    for prompt, items in members.items():
        distinct = ranks(means[prompt], sorts[prompt].order)
        shared = repeated_ranks(distinct, [len(same) for same in items])
        for rank, same in zip(shared, items, strict=True):
            for item in same:
                found[item] = rank
    return found, count


def _unsuitable(answer: JudgedAnswer, config: RatingConfig) -> str:
    if not answer.text.strip():
        return "empty answer"
    longest = max(len(answer.text), len(answer.conversation))
    return "longer than rating.max_characters" if longest > config.max_characters else ""


def _mean_of(ratings: Sequence[AnswerRating | None], item: int) -> float:
    rating = ratings[item]
    assert rating is not None
    return rating.mean


def _most_comparisons(sorts: Mapping[int, TranspositionSort]) -> int:
    """The largest number of comparisons that the sorts may need."""
    return sum(len(sort.order) * (len(sort.order) - 1) // 2 for sort in sorts.values())
