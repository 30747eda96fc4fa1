"""Untrusted text for display: cut, with control characters as visible escapes.

Escaping for HTML is the template's work (autoescape); this is about what a reader sees: control
characters, reversed reading order and lone surrogates become visible escapes.
"""

from __future__ import annotations

from collections.abc import Sequence

# zero width (non-)joiners are spelling in Persian and the scripts of India, not a trick
_KEPT = frozenset("\n\u200c\u200d")


def excerpt(text: str, limit: int) -> str:
    """The first `limit` characters of `text` with line breaks kept, "…" where it was cut."""
    shown = "".join(_seen(c) for c in text[: limit + 1])
    return shown if len(text) <= limit else shown[: limit - 1].rstrip() + "…"


def one_line(text: str, limit: int) -> str:
    """`text` on one line, cut at `limit` characters."""
    return excerpt(" ".join(text[: 4 * limit].split()), limit)


def unequal_settings(what: str, settings: Sequence[tuple[str, str]]) -> str:
    """A sentence when arms were measured with different settings; "" when they compare.

    settings   of each arm, by its name
    """
    if len({setting for _, setting in settings}) < 2:
        return ""
    told = "; ".join(f"{one_line(name, 60)}: {setting}" for name, setting in settings)
    return f"{what} were measured with different settings and cannot be compared ({told})."


def _seen(character: str) -> str:
    if character.isprintable() or character in _KEPT:
        return character
    if character.isspace():
        return " "
    return character.encode("unicode_escape").decode()
