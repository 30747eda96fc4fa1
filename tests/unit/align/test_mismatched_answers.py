"""KTO's mismatched answers: every prompt gets the answer of an earlier row with another prompt."""

from __future__ import annotations

import pytest

from stamm.align.data.encoded import EncodedAnswer
from stamm.align.training.answer_dataset import MismatchedAnswers, have_other_prompts
from stamm.base.errors import DataError


def answers(*prompts_and_answers: tuple[list[int], list[int]]) -> list[EncodedAnswer]:
    return [
        EncodedAnswer(
            example=number,
            role="rated",
            ids=prompt + body,
            supervised=[False] * len(prompt) + [True] * len(body),
            prompt_tokens=len(prompt),
        )
        for number, (prompt, body) in enumerate(prompts_and_answers)
    ]


def test_the_answer_before_that_has_another_prompt() -> None:
    rows = answers(([1, 2], [3]), ([1, 2], [4]), ([5], [6, 7]), ([8], [9]))
    found = MismatchedAnswers(rows, 8)
    assert found.partners.tolist() == [3, 3, 1, 2]
    assert [one.ids for one in found if one] == [[1, 2, 9], [1, 2, 9], [5, 4], [8, 6, 7]]
    assert [one.supervised for one in found[2:] if one] == [[False, True], [False, True, True]]


def test_what_does_not_fit_into_the_context_is_passed_over() -> None:
    rows = answers(([1, 2, 3], [4]), ([5], [6, 7, 8]), ([9], [6]))
    assert MismatchedAnswers(rows, 4).partners.tolist() == [2, 0, 1]
    assert MismatchedAnswers(rows, 3).partners.tolist() == [-1, 0, 0]
    assert MismatchedAnswers(rows, 3)[0] is None


def test_one_prompt_is_refused() -> None:
    assert not have_other_prompts([])
    assert not have_other_prompts(answers(([1], [2]), ([1], [3])))
    assert have_other_prompts(answers(([1], [2]), ([4], [2])))
    with pytest.raises(DataError, match="all answers are to one prompt"):
        MismatchedAnswers(answers(([1], [2]), ([1], [3])), 8)
