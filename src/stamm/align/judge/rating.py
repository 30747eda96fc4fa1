"""Ratings of answers by the articles of a charter, and the order of the best by comparisons.

Checked  tests/unit/align/test_judge.py, tests/cli/test_charter_command.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stamm.align.data.dataset_reader import read_rows
from stamm.align.data.examples import RowOrigin, prompt_and_answers
from stamm.align.judge.charter import (
    Article,
    comparison_request,
    conversation_text,
    rating_request,
)
from stamm.align.judge.config import RatingConfig
from stamm.align.judge.judge import Judge, JudgeQuestion, JudgeReply, Unrated
from stamm.align.records import BadRow
from stamm.base.errors import DataError
from stamm.base.files import sha256_value


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer as the judge is shown it, with its row.

    prompt   number of its prompt, from 0
    """

    row: Mapping[str, Any]
    origin: RowOrigin
    prompt: int
    conversation: str
    text: str

    @property
    def subject(self) -> str:
        """The file and the row."""
        return f"{self.origin.file}, row {self.origin.row}"


@dataclass
class AnswerFile:
    """The answers of a file, and the rows without one."""

    answers: list[JudgedAnswer] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    @property
    def num_prompts(self) -> int:
        """Distinct prompts."""
        return len({answer.prompt for answer in self.answers})


def read_answers(path: Path) -> AnswerFile:
    """The answers of a file in order; answers to the same conversation share their prompt.

    Raises   DataError when no row has an answer
    """
    file = AnswerFile()
    prompts: dict[str, int] = {}
    for row, example in read_rows(path):
        if isinstance(example, BadRow):
            file.bad.append(example)
            continue
        prompt, answers = prompt_and_answers(example)
        if len(answers) != 1:
            origin = example.origin
            file.bad.append(BadRow(origin.file, origin.row, "the row has no completion"))
            continue
        conversation = conversation_text(prompt)
        key = sha256_value([conversation, [dict(tool) for tool in prompt.tools]])
        number = prompts.setdefault(key, len(prompts))
        file.answers.append(
            JudgedAnswer(row, example.origin, number, conversation, answers[0].text)
        )
    if not file.answers:
        first = f": {file.bad[0].line()}" if file.bad else ""
        raise DataError(f"{path} has no row with an answer{first}", where="answers")
    return file


Pair = tuple[int, int]


class TranspositionSort:
    """An odd-even transposition sort whose comparisons are asked for round by round.

    items   numbers of the answers, presumably best first
    After len(items) rounds the order is sorted if comparisons are transitive; if not, it is the
    order after these rounds, which depends on the first one. No pair is asked for twice.
    """

    def __init__(self, items: Sequence[int]) -> None:
        self.order = list(items)
        self._round = 0
        self._better: dict[Pair, bool] = {}

    def pairs(self) -> list[Pair]:
        """The pairs whose comparison is needed next; [] when the sort has ended.

        The first of a pair is before the second in the present order.
        """
        while self._round < len(self.order):
            missing = [pair for pair in self._neighbours() if pair not in self._better]
            if missing:
                return missing
            self._exchange()
        return []

    def decide(self, pair: Pair, first_is_better: bool) -> None:
        """Record the comparison of a pair."""
        first, second = pair
        self._better[first, second] = first_is_better
        self._better[second, first] = not first_is_better

    def _neighbours(self) -> list[Pair]:
        start = self._round % 2
        positions = range(start, len(self.order) - 1, 2)
        return [(self.order[position], self.order[position + 1]) for position in positions]

    def _exchange(self) -> None:
        for position in range(self._round % 2, len(self.order) - 1, 2):
            first, second = self.order[position], self.order[position + 1]
            if not self._better[first, second]:
                self.order[position : position + 2] = [second, first]
        self._round += 1


def by_rating(means: Sequence[float]) -> list[int]:
    """Numbers of the answers, highest mean first; equal ones in their order."""
    return sorted(range(len(means)), key=lambda i: -means[i])


def ranks(means: Sequence[float], best: Sequence[int]) -> list[float]:
    """Rank of each answer, 1 for the best.

    means   of the ratings
    best    the top answers in the order of the comparisons; the others follow by their means, equal
            means share the mean of their ranks
    """
    rank_by_item = {item: float(position) for position, item in enumerate(best, 1)}
    others = [item for item in range(len(means)) if item not in rank_by_item]
    for item in others:
        higher = sum(means[other] > means[item] for other in others)
        equal = sum(means[other] == means[item] for other in others)
        rank_by_item[item] = len(best) + higher + (equal + 1) / 2
    return [rank_by_item[item] for item in range(len(means))]


def repeated_ranks(distinct: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Ranks among all answers, for answers that occur `counts` times.

    distinct   ranks among the distinct answers; equal answers share the mean of their ranks
    """
    mid_ranks = []
    for rank in distinct:
        before = sum(c for r, c in zip(distinct, counts, strict=True) if r < rank)
        equal = sum(c for r, c in zip(distinct, counts, strict=True) if r == rank)
        mid_ranks.append(before + (equal + 1) / 2)
    return mid_ranks


def reward(rank: float, count: int) -> float:
    """The mid-rank quantile of an answer among `count` of its prompt, in (0, 1): (count - rank + 1/2) / count."""
    return (count - rank + 0.5) / count


@dataclass(frozen=True)
class AnswerRating:
    """Scores of an answer and the probability of the digits together, by number of the article."""

    scores: dict[int, float]
    masses: dict[int, float]

    @property
    def mean(self) -> float:
        """Mean over the articles."""
        return math.fsum(self.scores.values()) / len(self.scores)


class JudgedText(NamedTuple):
    """A text to be rated, the conversation before it, and what it is called in messages."""

    conversation: str
    text: str
    subject: str


@dataclass
class ComparisonCount:
    """Comparisons of a run: replies in both orders of presentation, and those without a result."""

    asked: int = 0
    failed: int = 0
    replies: list[JudgeReply] = field(default_factory=list)


def rate_texts(
    judge: Judge,
    articles: Sequence[Article],
    texts: Mapping[int, JudgedText],
    num_items: int,
    unrated: Unrated,
    what: str,
) -> list[AnswerRating | None]:
    """The rating of each of `num_items` texts, asked for by number; None for those in `unrated`.

    Raises   as `Judge.ask`
    """
    asked = [(item, text, article) for item, text in texts.items() for article in articles]
    questions = [
        JudgeQuestion(item, rating_request(article, *text)) for item, text, article in asked
    ]
    replies = judge.ask(questions, num_items, unrated, what)
    ratings = {item: AnswerRating({}, {}) for item in texts}
    for (item, _, article), reply in zip(asked, replies, strict=True):
        if reply is not None:
            ratings[item].scores[article.number] = reply.mean()
            ratings[item].masses[article.number] = reply.mass
    return [None if item in unrated.reasons else ratings[item] for item in range(num_items)]


def compare_texts(
    judge: Judge,
    articles: Sequence[Article],
    pairs: Mapping[int, tuple[JudgedText, JudgedText]],
    num_items: int,
    failed: Unrated,
    what: str,
) -> tuple[list[float | None], list[JudgeReply]]:
    """The preference for the first text of each pair, None without a result; and all replies.

    Each pair is asked for in both orders; the subject of a text is that of the question where it is first.

    Raises   as `Judge.ask`
    """
    questions = [
        JudgeQuestion(
            item,
            comparison_request(articles, text.conversation, text.text, other.text, text.subject),
        )
        for item, (first, second) in pairs.items()
        for text, other in ((first, second), (second, first))
    ]
    replies = judge.ask(questions, num_items, failed, what)
    preferences = [
        None if forward is None or backward is None else preference(forward, backward)
        for forward, backward in zip(replies[::2], replies[1::2], strict=True)
    ]
    return preferences, [reply for reply in replies if reply is not None]


def preference(forward: JudgeReply, backward: JudgeReply) -> float:
    """Probability that the first answer is better, over both orders of presentation.

    A preference for a position counts once for each answer, and cancels.
    """
    first_when_first = forward.probabilities.get("1", 0.0) / forward.mass
    first_when_second = backward.probabilities.get("2", 0.0) / backward.mass
    return (first_when_first + first_when_second) / 2


def first_preferred(replies: Iterable[JudgeReply]) -> float | None:
    """Mean probability of the answer presented first; None without replies."""
    shares = [reply.probabilities.get("1", 0.0) / reply.mass for reply in replies]
    return math.fsum(shares) / len(shares) if shares else None


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
    texts = {}
    for item, answer in enumerate(answers):
        if reason := _unsuitable(answer, config):
            unrated.add(item, reason, answer.subject)
        else:
            texts[item] = JudgedText(answer.conversation, answer.text, answer.subject)
    return rate_texts(judge, articles, texts, len(answers), unrated, "answers")


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
    means: dict[int, list[float]] = {}
    for item, (answer, rating) in enumerate(zip(answers, ratings, strict=True)):
        if rating is not None:
            same = groups.setdefault(answer.prompt, {}).setdefault(answer.text, [])
            if not same:
                means.setdefault(answer.prompt, []).append(rating.mean)
            same.append(item)
    members = {prompt: list(texts.values()) for prompt, texts in groups.items()}
    sorts = {
        prompt: TranspositionSort(by_rating(means[prompt])[: config.top]) for prompt in members
    }
    count = ComparisonCount()
    most = sum(len(sort.order) * (len(sort.order) - 1) // 2 for sort in sorts.values())
    failed = Unrated()
    while wanted := [(prompt, pair) for prompt, sort in sorts.items() for pair in sort.pairs()]:
        pairs = {}
        for item, (prompt, pair) in enumerate(wanted, count.asked):
            first, second = (answers[members[prompt][position][0]] for position in pair)
            pairs[item] = (_compared(first, second), _compared(second, first))
        preferences, replies = compare_texts(judge, articles, pairs, most, failed, "comparisons")
        for (prompt, pair), preferred in zip(wanted, preferences, strict=True):
            # Without a result the order by ratings is kept.
            sorts[prompt].decide(pair, preferred is None or preferred >= 0.5)
        count.asked += len(wanted)
        count.replies += replies
    count.failed = len(failed.reasons)
    ranks_by_answer: list[float | None] = [None] * len(answers)
    for prompt, items in members.items():
        distinct = ranks(means[prompt], sorts[prompt].order)
        shared = repeated_ranks(distinct, [len(same) for same in items])
        for rank, same in zip(shared, items, strict=True):
            for item in same:
                ranks_by_answer[item] = rank
    return ranks_by_answer, count


def _compared(first: JudgedAnswer, second: JudgedAnswer) -> JudgedText:
    return JudgedText(first.conversation, first.text, f"{first.subject} and {second.origin.row}")


def _unsuitable(answer: JudgedAnswer, config: RatingConfig) -> str:
    if not answer.text.strip():
        return "empty answer"
    longest = max(len(answer.text), len(answer.conversation))
    return "longer than rating.max_characters" if longest > config.max_characters else ""
