"""Validation of a judge on degraded answers: shares of ordered pairs and their intervals."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import mpmath
import pytest

from stamm.align.judge.charter import Article, Clause, shipped
from stamm.align.judge.config import ValidationConfig
from stamm.align.judge.judge import AnswerStore, Judge, JudgeReply, JudgeRequest, Received
from stamm.align.judge.rating import preference
from stamm.align.judge.validation import (
    AnswerChain,
    read_chains,
    validate_judge,
)
from stamm.base.console import NoProgress
from stamm.base.errors import DataError
from stamm.statistics.intervals import wilson

ARTICLE = Article(1, "Good", (Clause("1", "Be good."),))
CHAINS = [
    AnswerChain(f"row {n}", f"prompt {n}", tuple(f"chain {n} step {s}" for s in range(4)))
    for n in range(3)
]
Rate = Callable[[int, int], float]


class ChainModel:
    """Rates step s of chain n by a function; prefers the higher rating, and the first place by `bias`."""

    def __init__(self, rate: Rate, bias: float = 0.0) -> None:
        self.identity: Mapping[str, object] = {"kind": "chain"}
        self._rate, self._bias = rate, bias

    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        for place, request in enumerate(requests):
            found = [tuple(map(int, m)) for m in re.findall(r"chain (\d) step (\d)", request.user)]
            values = [self._rate(chain, step) for chain, step in found]
            if len(values) == 1:
                low = int(values[0])
                received(
                    place,
                    JudgeReply({str(low): low + 1 - values[0], str(low + 1): values[0] - low}),
                )
            else:
                first = 0.5 + 0.1 * (values[0] - values[1]) + self._bias
                received(place, JudgeReply({"1": first, "2": 1 - first}))


def validate(tmp_path: Path, model: ChainModel, pairwise: str = "all") -> dict[str, object]:
    with AnswerStore(tmp_path / "requests.jsonl") as store:
        judge = Judge(model, store, NoProgress(), min_digit_mass=0.5, max_unrated=0.0)
        config = ValidationConfig(steps=3, pairwise=pairwise)  # type: ignore[arg-type]
        return validate_judge(judge, [ARTICLE], CHAINS, config)


def counts(share: object) -> tuple[int, int, int]:
    assert isinstance(share, dict)
    return share["right"], share["ties"], share["pairs"]


def test_a_perfect_judge_orders_all_pairs_despite_its_position_bias(tmp_path: Path) -> None:
    found = validate(tmp_path, ChainModel(lambda chain, step: 8 - step, bias=0.15))
    assert counts(found["pointwise_all"]) == counts(found["pairwise_all"]) == (18, 0, 18)
    assert counts(found["pointwise_adjacent"]) == counts(found["pairwise_adjacent"]) == (9, 0, 9)
    assert found["first_preferred"] == pytest.approx(0.65)
    steps = found["steps"]
    assert isinstance(steps, list)
    assert [step["name"] for step in steps][:2] == ["good answer", "truncated"]
    assert [step["mean_rating"] for step in steps] == [8, 7, 6, 5]


def test_wrong_and_equal_ratings_are_counted(tmp_path: Path) -> None:
    """Steps 0 and 1 are equal, 3 is better than 2; in chain 2 all is reversed."""
    rating = [6.0, 6.0, 3.0, 4.0]
    model = ChainModel(lambda chain, step: 9 - rating[step] if chain == 2 else rating[step])
    found = validate(tmp_path, model, "adjacent")
    # of 6 pairs of a chain: 4 right, 1 tie, 1 wrong; reversed: 1 right, 1 tie
    assert counts(found["pointwise_all"]) == (9, 3, 18)
    assert counts(found["pointwise_adjacent"]) == counts(found["pairwise_adjacent"]) == (3, 3, 9)
    assert "pairwise_all" not in found


def test_comparisons_may_be_left_out(tmp_path: Path) -> None:
    found = validate(tmp_path, ChainModel(lambda chain, step: 8 - step), "none")
    assert not {"pairwise_all", "pairwise_adjacent", "first_preferred"} & found.keys()


def test_a_preference_is_the_mean_over_both_orders() -> None:
    forward, backward = JudgeReply({"1": 0.6, "2": 0.2}), JudgeReply({"1": 0.45, "2": 0.05})
    assert preference(forward, backward) == pytest.approx((0.75 + 0.1) / 2)
    assert preference(JudgeReply({"2": 0.9}), JudgeReply({"1": 0.9})) == 0


@pytest.mark.parametrize(("right", "pairs"), [(0, 10), (3, 10), (10, 10), (81, 263), (1, 1)])
def test_the_wilson_interval_solves_its_equation(right: int, pairs: int) -> None:
    """Both ends p satisfy (share - p)^2 = z^2 p (1 - p) / n, z the normal quantile at 0.975."""
    z = float(mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf("0.95")))
    low, high = wilson(right, pairs)
    for end in {low, high}:
        if 0 < end < 1:
            assert (right / pairs - end) ** 2 == pytest.approx(z * z * end * (1 - end) / pairs)
    assert 0 <= low <= right / pairs <= high <= 1
    assert low < high


def test_the_wilson_interval_of_nothing_is_everything() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, method 3


def test_the_shipped_answers_give_12_chains_and_short_ones_none(tmp_path: Path) -> None:
    path = shipped("package:good_answers.jsonl", "test")
    chains, skipped = read_chains(path, ValidationConfig())
    assert (len(chains), skipped) == (12, 0)
    assert len(chains[0].texts) == 9
    assert len(read_chains(path, ValidationConfig(chains=2, steps=3))[0]) == 2
    rows = [json.loads(line) for line in path.read_text().splitlines()][:3]
    rows[1]["completion"] = "too short"
    mine = tmp_path / "good.jsonl"
    mine.write_text("\n".join(map(json.dumps, rows)) + "\nbroken\n")
    found, skipped = read_chains(mine, ValidationConfig())
    assert ([chain.name for chain in found], skipped) == (
        ["good.jsonl, row 1", "good.jsonl, row 3"],
        2,
    )
    mine.write_text(json.dumps({"prompt": "a", "completion": "b"}))
    with pytest.raises(DataError, match="no answer from which a chain can be made"):
        read_chains(mine, ValidationConfig())


def test_texts_of_one_chain_are_the_pairs(tmp_path: Path) -> None:
    """No pair is made of two prompts."""
    seen: list[JudgeRequest] = []
    model = ChainModel(lambda chain, step: 8 - step)
    inner = model.answer

    def record(requests: Sequence[JudgeRequest], received: Received) -> None:
        seen.extend(requests)
        inner(requests, received)

    model.answer = record  # type: ignore[method-assign]
    validate(tmp_path, model)
    pairs = [re.findall(r"chain (\d) step (\d)", r.user) for r in seen if r.digits == ("1", "2")]
    assert all(first[0] == second[0] for first, second in pairs)
    wanted = {(i, j) for i, j in itertools.permutations("0123", 2)}
    assert {(first[1], second[1]) for first, second in pairs} == wanted
