"""Each measure on a text small enough to count by hand."""

from __future__ import annotations

import math

import pytest

from stamm.corpus.quality.measures import MEASURES, WordUse, measure

NO_USE = WordUse()
USE = WordUse(stop_words=("the", "of", "cat"), orders=((1, 0), (0, 2)))


def test_counts_by_hand() -> None:
    text = "# Title\n\n- one two 3...\n- {four}\n\nThe end of it.\nThe end of it."
    found = measure(text, NO_USE)
    # Title one two 3 four The end of it The end of it
    assert found.words == 13
    assert found.mean_word_letters == pytest.approx(36 / 13)
    assert found.worded_share == pytest.approx(12 / 13)
    assert found.symbol_rate == pytest.approx(2 / 13)
    assert found.bullet_line_share == pytest.approx(2 / 5)
    assert found.ellipsis_line_share == pytest.approx(1 / 5)
    assert found.ended_line_share == pytest.approx(3 / 5)
    assert found.short_line_share == 1.0
    assert found.line_rate == pytest.approx(5 / 13)
    assert found.duplicate_line_share == pytest.approx(1 / 5)
    assert found.duplicate_line_letters == pytest.approx(14 / (7 + 14 + 8 + 14 + 14))
    assert found.duplicate_paragraph_share == 0.0
    visible = sum(not c.isspace() for c in text)
    assert found.letter_share == pytest.approx(35 / visible)
    assert found.digit_share == pytest.approx(1 / visible)
    assert found.brace_share == pytest.approx(2 / visible)
    assert found.script == "Latn"


def test_stop_words_and_their_order() -> None:
    found = measure("The end of the cat. the of Of THE CAT the", USE)
    # words: The end of the cat the of Of THE CAT the
    assert found.stop_share == pytest.approx(10 / 11)
    # of-the twice in order, the-of once against; the-cat twice in order, cat-the twice against.
    assert found.order_share == pytest.approx((4 + 4) / (7 + 4))
    assert measure("nothing known here", USE).order_share == 1.0


def test_entropy_of_words() -> None:
    assert measure("a b c d a b c d", NO_USE).word_entropy == pytest.approx(math.log(4))
    assert measure("ha ha ha", NO_USE).word_entropy == 0.0


@pytest.mark.parametrize("ending", ["。", "؟", "।", "!", "?", ".»", "”", "።", "။", "។", "།", "…"])
def test_sentences_end_in_many_scripts(ending: str) -> None:
    assert measure(f"words{ending}", NO_USE).ended_line_share == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\n\t",
        "\x00",
        "\ud800",
        "!!!",
        "a",
        "你",
        "\u0301" * 50,
        "\U0010ffff" * 20,
        "{" * 1000,
        "".join(map(chr, range(0x2000, 0x2FFF))),
    ],
)
def test_any_text_has_finite_measures(text: str) -> None:
    for use in (NO_USE, USE):
        found = measure(text, use)
        for name in MEASURES[1:]:
            value = getattr(found, name)
            assert math.isfinite(value)
            if name.endswith(("_share", "_letters")) and name != "mean_word_letters":
                assert 0.0 <= value <= 1.0


def test_a_measure_depends_on_the_text_alone() -> None:
    text = "One line of words.\nAnother line of words.\n" * 9
    assert measure(text, USE) == measure(text, USE)


def test_time_is_linear_in_hostile_text() -> None:
    # Quadratic work on a million characters would run into the test's time limit.
    for text in ("a " * 500_000, "\n" * 1_000_000, "ab" * 500_000, "…—" * 500_000, "你" * 300_000):
        measure(text, USE)
