"""Markdown made of hostile text: read by a parser, nothing but text comes out."""

from __future__ import annotations

import pytest

from stamm.corpus.transparency.markdown import MarkdownTable, code_span, escape_text, table

HOSTILE = (
    "<script>alert(1)</script>",
    "[link](javascript:alert(1))",
    "![](https://evil.example/pixel.png)",
    "a | b | c",
    "``` `` `",
    "`",
    "line\n\n# heading",
    "\x1b[2J\u202eevil\x00",
    "---\nlicense: mit",
    "&lt;b&gt;",
    "x" * 100_000,
    "**bold** _em_ ~~gone~~ $x$",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_stays_one_cell(text: str) -> None:
    made = table(MarkdownTable(columns=("a", "b"), rows=((text, 1),))).splitlines()
    assert len(made) == 3
    row = made[2].replace("\\|", "")
    assert row.count("|") == 3
    assert row.isprintable()
    assert len(row) < 400


@pytest.mark.parametrize("text", HOSTILE)
def test_code_is_closed_by_a_fence_that_is_not_in_it(text: str) -> None:
    made = code_span(text)
    fence = made[: len(made) - len(made.lstrip("`"))]
    inside = made[len(fence) : -len(fence)]
    assert made.endswith(fence)
    assert fence not in inside
    assert inside.strip() and not inside.startswith("`") and not inside.endswith("`")


def test_nothing_is_no_code() -> None:
    assert code_span("") == ""
    assert code_span(" \n ") == ""


def test_words_have_no_markup_left() -> None:
    assert escape_text("a*b_c <i> `x` [y](z) | # ~ & $") == (
        "a\\*b\\_c \\<i\\> \\`x\\` \\[y\\](z) \\| \\# \\~ \\& \\$"
    )
    assert escape_text("two\n\nlines\u202e") == "two lines\\\\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- one", "\\- one"),
        ("+ one", "\\+ one"),
        ("12. one", "12\\. one"),
        ("3) one", "3\\) one"),
        ("---", "\\---"),
        ("-5 is below 1.5", "-5 is below 1.5"),
        ("2026-08-02", "2026-08-02"),
    ],
)
def test_a_line_of_words_is_no_list_and_no_rule(text: str, shown: str) -> None:
    assert escape_text(text) == shown


def test_numbers_stand_to_the_right() -> None:
    made = table(MarkdownTable(columns=("a", "b", "c"), rows=(("x", "y", 1200),), rest="More."))
    assert made == "| a | b | c |\n| --- | --- | ---: |\n| `x` | y | 1,200 |\n\nMore."
