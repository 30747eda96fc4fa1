"""Chains of degraded answers: deterministic, each text other and not longer by much."""

from __future__ import annotations

import json

import pytest

from stamm.align.judge.charter import shipped
from stamm.align.judge.validation import STEPS, chain

GOOD = [
    json.loads(line)["completion"]
    for line in shipped("package:good_answers.jsonl", "test").read_text().splitlines()
]
TEXT = GOOD[0]


def test_every_shipped_answer_gives_a_chain_of_nine_different_texts() -> None:
    assert len(GOOD) == 12
    for answer, other in zip(GOOD, GOOD[1:] + GOOD[:1], strict=True):
        texts = chain(answer, other, 8)
        assert texts[0] == answer
        assert len(texts) == len(set(texts)) == 9
        assert all(texts)


def test_each_step_does_what_its_name_promises() -> None:
    texts = chain(TEXT, GOOD[1], 8)
    words = [text.split() for text in texts]
    names = [name for name, _ in STEPS]
    assert words[1] == words[0][: len(words[1])]
    assert len(words[1]) == round(0.7 * len(words[0]))
    assert len(words[2]) == len(words[1]) - round(0.15 * len(words[1]))
    contradicted = words[3]
    assert contradicted.count("not") > words[2].count("not") or "opposite" in contradicted
    assert sorted(words[4]) == sorted(contradicted)
    assert len(words[5]) < len(words[4])
    assert words[6][: len(words[6]) // 2] == words[5][: len(words[5]) // 2]
    assert sorted(words[7]) == sorted(words[6])
    assert set(words[8]) <= set(GOOD[1].split())
    assert names[-1] == "off topic"


def test_a_chain_is_the_same_each_time_and_may_be_short() -> None:
    assert chain(TEXT, GOOD[1], 8) == chain(TEXT, GOOD[1], 8)
    assert chain(TEXT, GOOD[1], 3) == chain(TEXT, GOOD[1], 8)[:4]


def test_short_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="20 words"):
        chain("too short", TEXT, 8)
