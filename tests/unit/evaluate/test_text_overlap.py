"""F1, ROUGE-L and BLEU of completions against the libraries that report them, and published values."""

from __future__ import annotations

import random

import pytest

from stamm.evaluate.text_overlap import sentence_bleu, word_f1, word_rouge_l

WORDS = [
    "the", "a", "cat,", "sat", "on", "mat.", "3.5", "1,000", "U.S.", "it's", "10-15", "&amp;", "dog's", "(red)",
    "blue/green", "-", "END",
]  # fmt: skip


def texts(count: int) -> list[tuple[str, list[str]]]:
    draw = random.Random(5)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 14)))

    return [(text(), [text() for _ in range(draw.randint(1, 3))]) for _ in range(count)]


def test_bleu_is_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    for text, answers in texts(300):
        expected = sacrebleu.sentence_bleu(text, answers).score / 100
        assert sentence_bleu(text, answers) == pytest.approx(expected, abs=1e-9)


def test_rouge_is_that_of_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    for text, answers in texts(300):
        expected = max(scorer.score(answer, text)["rougeL"].fmeasure for answer in answers)
        assert word_rouge_l(text, answers) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "answers", "value"),
    [
        ("The Cat sat!", ["a cat sat"], 1.0),
        ("cat", ["cat dog", "bird"], 2 / 3),
        ("the", ["cat"], 0.0),
        ("", ["the"], 1.0),
        ("bird", ["cat"], 0.0),
        ("Köln und Bonn", ["Bonn"], 1 / 2),
    ],
)
def test_f1_is_that_of_squad(text: str, answers: list[str], value: float) -> None:
    assert word_f1(text, answers) == pytest.approx(value)


def test_rouge_reads_every_script() -> None:
    assert word_rouge_l("Köln ist schön", ["köln war schön"]) == pytest.approx(2 / 3)
    assert (word_rouge_l("", ["a"]), sentence_bleu("", ["a"])) == (0.0, 0.0)
