"""Markdown of untrusted text: a parser finds text only."""

from __future__ import annotations

import pytest

from stamm.corpus.transparency.template import MarkdownTable, code_span, table

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


def test_numbers_stand_to_the_right() -> None:
    made = table(MarkdownTable(columns=("a", "b", "c"), rows=(("x", "y", 1200),), rest="More."))
    assert made == "| a | b | c |\n| --- | --- | ---: |\n| `x` | y | 1,200 |\n\nMore."
