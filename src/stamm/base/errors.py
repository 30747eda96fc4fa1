"""Errors with one-line messages: what is wrong, the value, where it was set, and the fix."""

from __future__ import annotations


class StammError(Exception):
    """A problem that the user can act on, with a one-line message.

    what   what is wrong, as a full statement ("d_ff = 100 does not divide by 3")
    where  where the value was set ("set on the command line", "line 3 of pages.jsonl")
    fix    what to do next
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(self.line())

    def line(self) -> str:
        """The whole message on one line, control characters made visible."""
        parts = [self.what.rstrip(".")]
        if self.where:
            parts[0] += f" ({self.where})"
        if self.fix:
            parts.append(self.fix.rstrip("."))
        return visible(". ".join(parts) + ".")


class ConfigError(StammError):
    """A recipe, a key or a value that cannot be used: misuse, exit code 2."""

    exit_code = 2


class DataError(StammError):
    """An input that cannot be read or has unexpected content."""


class RunError(StammError):
    """A run folder that cannot be used, or a step that failed."""


class StoppedError(StammError):
    """A run that was asked to stop early; the same command resumes it."""

    exit_code = 143  # 128 + SIGTERM, as shells report it


class ExportError(StammError):
    """A model that cannot be exported, or that differs after export."""


def visible(text: str, limit: int = 2000) -> str:
    """`text` on one line: control characters escaped, cut at `limit` characters.

    Text from the web ends up in messages; an escape sequence in it must not reach a terminal.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
