"""A judge asks what is not stored, counts what it cannot use, and ranks with both orders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from stamm.align.data.examples import RowOrigin
from stamm.align.judge.charter import Article, Clause
from stamm.align.judge.config import RatingConfig
from stamm.align.judge.judge import (
    AnswerStore,
    Judge,
    JudgeQuestion,
    JudgeReply,
    JudgeRequest,
    NoReply,
    Received,
    Unrated,
)
from stamm.align.judge.rating import JudgedAnswer, rank_answers, rate
from stamm.base.console import NoProgress
from stamm.base.errors import RunError

ARTICLES = (
    Article(1, "Good", (Clause("1", "Be good."),)),
    Article(2, "True", (Clause("2", "Be true."),)),
)
PROSE = JudgeReply({"5": 0.1}, "Well, I would")
Answer = Callable[[JudgeRequest], JudgeReply | NoReply]


class FakeModel:
    """Answers by a function, last request first."""

    def __init__(self, answer: Answer) -> None:
        self.identity: Mapping[str, object] = {"kind": "fake"}
        self.asked: list[JudgeRequest] = []
        self._answer = answer

    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        for place, request in reversed(list(enumerate(requests))):
            self.asked.append(request)
            received(place, self._answer(request))


def by_quality(request: JudgeRequest) -> JudgeReply | NoReply:
    """Rates by the digit in the answer; strongly prefers the better one, weakly the first."""
    found = [float(q) for q in re.findall(r"quality (\d(?:\.\d)?)", request.user)]
    if len(found) == 1:
        low = min(int(found[0]), 8)
        return JudgeReply({str(low): low + 1 - found[0], str(low + 1): found[0] - low})
    first = min(max(0.5 + (found[0] - found[1]) / 10 + 0.2, 0.0), 1.0)
    return JudgeReply({"1": first, "2": 1 - first})


def answers(*qualities: str, prompt: int = 0) -> list[JudgedAnswer]:
    return [
        JudgedAnswer({}, RowOrigin(file="a.jsonl", row=row), prompt, f"p{prompt}", f"quality {q}")
        for row, q in enumerate(qualities, 1)
    ]


def judge_of(tmp_path: Path, model: FakeModel, max_unrated: float = 0.0) -> Judge:
    store = AnswerStore(tmp_path / "requests.jsonl")
    return Judge(model, store, NoProgress(), min_digit_mass=0.5, max_unrated=max_unrated)


def test_an_answer_is_rated_by_each_article_once(tmp_path: Path) -> None:
    model, unrated = FakeModel(by_quality), Unrated()
    judged = answers("3.5", "8", "3.5")
    ratings = rate(judge_of(tmp_path, model), ARTICLES, judged, RatingConfig(), unrated)
    assert [r.mean if r else None for r in ratings] == pytest.approx([3.5, 8.0, 3.5])
    assert ratings[0] is not None
    assert ratings[0].scores == pytest.approx({1: 3.5, 2: 3.5})
    assert len(model.asked) == 4  # the equal answer is not asked for again
    again = FakeModel(by_quality)
    assert rate(judge_of(tmp_path, again), ARTICLES, judged, RatingConfig(), Unrated()) == ratings
    assert again.asked == []


def test_prose_and_failures_leave_rows_unrated_below_the_limit(tmp_path: Path) -> None:
    def answer(request: JudgeRequest) -> JudgeReply | NoReply:
        if "quality 2" in request.user and "article 2" in request.subject:
            return PROSE
        return (
            NoReply("HTTP 500, 3 attempts") if "quality 4" in request.user else by_quality(request)
        )

    unrated = Unrated()
    judge = judge_of(tmp_path, FakeModel(answer), max_unrated=0.5)
    ratings = rate(judge, ARTICLES, answers("1", "2", "3", "4"), RatingConfig(), unrated)
    assert [rating is None for rating in ratings] == [False, True, False, True]
    assert unrated.reasons == {1: "prose", 3: "no reply"}
    # prose is a reply and is stored; a failure is asked for again
    model = FakeModel(by_quality)
    judge = judge_of(tmp_path, model, max_unrated=0.5)
    rate(judge, ARTICLES, answers("1", "2", "3", "4"), RatingConfig(), again := Unrated())
    assert again.reasons == {1: "prose"}
    assert {request.subject for request in model.asked} == {
        "a.jsonl, row 4, article 1",
        "a.jsonl, row 4, article 2",
    }


def test_above_the_limit_the_run_stops_with_prompt_reply_and_count(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, FakeModel(lambda request: PROSE), max_unrated=0.25)
    with pytest.raises(RunError) as error:
        rate(judge, ARTICLES, answers(*"12345678"), RatingConfig(), Unrated())
    line = error.value.line()
    assert "no result for 3 of 8 answers, more than rating.max_unrated = 25%" in line
    assert "3 × prose (a.jsonl, row 8, article 2: 'Well, I would'" in line


def test_empty_and_long_answers_are_never_sent(tmp_path: Path) -> None:
    model, unrated = FakeModel(by_quality), Unrated()
    judged = [*answers("5"), JudgedAnswer({}, RowOrigin(file="a", row=2), 0, "p", " \n")]
    judged.append(JudgedAnswer({}, RowOrigin(file="a", row=3), 0, "p", "quality 5" + "x" * 99))
    config = RatingConfig(max_characters=50)
    judge = judge_of(tmp_path, model, max_unrated=0.9)
    assert rate(judge, ARTICLES, judged, config, unrated)[1:] == [None, None]
    assert unrated.reasons == {1: "empty answer", 2: "longer than rating.max_characters"}
    assert {request.subject for request in model.asked} == {
        "a.jsonl, row 1, article 1",
        "a.jsonl, row 1, article 2",
    }
    with pytest.raises(RunError, match="2 of 3 answers"):
        rate(judge_of(tmp_path, model), ARTICLES, judged, config, Unrated())


def rank(
    tmp_path: Path, model: FakeModel, judged: list[JudgedAnswer], top: int, max_unrated: float = 0.0
) -> tuple[list[float | None], int, int]:
    config = RatingConfig(top=top)
    judge = judge_of(tmp_path, model, max_unrated)
    ratings = rate(judge, ARTICLES, judged, config, Unrated())
    ranks, count = rank_answers(judge, ARTICLES, judged, ratings, config)
    return ranks, count.asked, count.failed


def test_position_bias_cancels_because_both_orders_are_asked(tmp_path: Path) -> None:
    """The model prefers the first of two answers unless the second is better by 2."""
    model = FakeModel(by_quality)
    ranks, asked, _ = rank(tmp_path, model, answers("5", "6", "5.5", "7"), top=4)
    assert ranks == [4, 2, 3, 1]
    pairwise = [request for request in model.asked if request.digits == ("1", "2")]
    assert len(pairwise) == 2 * asked


def test_comparisons_overrule_ratings_for_the_best_alone(tmp_path: Path) -> None:
    def contrary(request: JudgeRequest) -> JudgeReply | NoReply:
        reply = by_quality(request)
        if request.digits == ("1", "2") and isinstance(reply, JudgeReply):
            found = [float(q) for q in re.findall(r"quality (\d(?:\.\d)?)", request.user)]
            return JudgeReply({"1": float(found[0] < found[1]), "2": float(found[0] > found[1])})
        return reply

    judged = answers("2", "9", "8", "3", "7")
    assert rank(tmp_path, FakeModel(contrary), judged, top=3)[0] == [5, 3, 2, 4, 1]
    assert rank(tmp_path, FakeModel(contrary), judged, top=0) == ([5, 1, 2, 4, 3], 0, 0)


def test_equal_answers_are_compared_once_and_prompts_apart(tmp_path: Path) -> None:
    model = FakeModel(by_quality)
    judged = [*answers("5", "7", "7", "2"), *answers("3", "4", prompt=1)]
    ranks, asked, _ = rank(tmp_path, model, judged, top=2)
    assert ranks == [3, 1.5, 1.5, 4, 2, 1]
    assert asked == 2
    assert all(request.user.count("quality 7") < 2 for request in model.asked)


def test_a_comparison_without_a_result_leaves_the_order_of_the_ratings(tmp_path: Path) -> None:
    def answer(request: JudgeRequest) -> JudgeReply | NoReply:
        return PROSE if request.digits == ("1", "2") else by_quality(request)

    judged = answers("5", "6", "7")
    assert rank(tmp_path, FakeModel(answer), judged, top=3, max_unrated=0.9) == ([3, 2, 1], 2, 2)
    (tmp_path / "other").mkdir()
    with pytest.raises(RunError, match="of 3 comparisons"):
        rank(tmp_path / "other", FakeModel(answer), judged, top=3)


def test_a_question_of_two_items_fails_for_both(tmp_path: Path) -> None:
    request = JudgeRequest("s", "u", ("1",), "subject")
    judge = judge_of(tmp_path, FakeModel(lambda request: PROSE), max_unrated=0.9)
    questions = [JudgeQuestion(0, request), JudgeQuestion(1, request)]
    unrated = Unrated()
    assert judge.ask(questions, 10, unrated, "items") == [None, None]
    assert unrated.counts() == {"prose": 2}
