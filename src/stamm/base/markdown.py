"""Escaping of untrusted text for Markdown."""

from __future__ import annotations

import re

from stamm.base.errors import visible

_SPECIAL = re.compile(r"([\\`*_\[\]#|~!${}>])")
# Start of a list or rule: a dash, a plus, a number with its point.
_LEADING = re.compile(r"^([0-9]*)([-+.)])(?=[ -]|$)")


def escape_markdown(text: str, limit: int) -> str:
    """`text` on one line of Markdown without markup, HTML or entities, cut at `limit` characters.

    Edge     runs of blanks become one space; control and invisible characters become escapes.
    """
    shown = _SPECIAL.sub(r"\\\1", visible(" ".join(text.split()), limit))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;")
    return _LEADING.sub(r"\1\\\2", shown)
