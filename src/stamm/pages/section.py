"""Sections of a page: anchor, heading, markup and facts for the head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stamm.pages.figure import DataTable, Figure
from stamm.pages.frame import fill

_KEY = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page with a heading, made by the subject that wrote the files which it shows.

    key      its anchor ("training"); html has `<section id=key>`
    title    in the list of contents
    html     markup from `stamm.pages.frame.fill`, which escapes every value
    facts    short facts for the head of the page
    """

    key: str
    title: str
    html: Markup
    facts: tuple[str, ...] = ()


def section_of(
    key: str,
    title: str,
    *,
    heading: str = "",
    paragraphs: Sequence[str] = (),
    figures: Sequence[Figure] = (),
    tables: Mapping[str, DataTable] | None = None,
    facts: Sequence[str] = (),
) -> Section:
    """Section of paragraphs, figures and tables, in this order; every text is escaped.

    key       lower-case letters, digits, - and _
    heading   "" takes the title
    Raises    ValueError for a key that cannot be an anchor
    """
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"key = {key!r} cannot be an anchor: use lower-case letters, digits, - and _"
        )
    context = {
        "key": key,
        "heading": heading or title,
        "paragraphs": paragraphs,
        "figures": figures,
        "tables": tuple((tables or {}).items()),
    }
    html = fill("plain.html", context, "stamm.pages")
    return Section(key=key, title=title, html=html, facts=tuple(facts))
