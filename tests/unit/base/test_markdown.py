"""Escaping for Markdown: text has no markup, no HTML and no second line."""

from __future__ import annotations

import pytest

from stamm.base.markdown import escape_markdown


def test_no_markup_is_left() -> None:
    assert escape_markdown("a*b_c <i> `x` [y](z) | # ~ & $", 100) == (
        "a\\*b\\_c &lt;i\\> \\`x\\` \\[y\\](z) \\| \\# \\~ &amp; \\$"
    )
    assert escape_markdown("two\n\nlines\u202e\x1b[31m", 100) == "two lines\\\\u202e\\\\x1b\\[31m"
    assert len(escape_markdown("y" * 500, 120)) == 120


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
def test_a_line_is_not_a_list_or_a_rule(text: str, shown: str) -> None:
    assert escape_markdown(text, 100) == shown
