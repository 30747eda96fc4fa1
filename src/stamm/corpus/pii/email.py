"""PII detection of e-mail addresses.

Addresses spelled for people ("jane at example dot org") and mailboxes in quotation marks are not
detected: both look like prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stamm.corpus.pii.word_boundaries import LETTERS, WORD

_IN_MAILBOX = re.compile(rf"[{LETTERS}0-9._%+-]")
_STARTS_MAILBOX = re.compile(rf"[{WORD}]")
_DOMAIN = re.compile(
    rf"((?:[{LETTERS}0-9](?:[{LETTERS}0-9-]{{0,61}}[{LETTERS}0-9])?\.){{1,8}})"
    rf"([Xx][Nn]--[A-Za-z0-9-]{{0,58}}[A-Za-z0-9]|[{LETTERS}]{{2,24}})"
    rf"(?![{LETTERS}0-9]|\.[{LETTERS}])"
)
_LONGEST_DOMAIN = 255
# icon@2x.png and similar are files; a.b.py is a host in Paraguay.
_FILE_ENDS = ("png", "jpg", "jpeg", "gif", "svg", "webp", "html", "css", "js", "ts", "py", "json")


def email_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the e-mail addresses of a text, in order.

    Edge   `git@host:path` is a repository, not a mailbox; `icon@2x.png` is a file.
    """
    at = text.find("@")
    while at != -1:
        start = _mailbox_start(text, at)
        domain = _DOMAIN.match(text, at + 1, at + 1 + _LONGEST_DOMAIN)
        if start < at and domain and not _is_file(domain):
            repository = text[start:at] == "git" and text[domain.end() : domain.end() + 1] == ":"
            if not repository:
                yield start, domain.end()
        at = text.find("@", at + 1)


def _mailbox_start(text: str, at: int) -> int:
    """Start of the mailbox before the "@" at `at`; `at` when there is none.

    Edge   a mailbox beyond the 64 characters of RFC 5321 is covered whole.
    """
    start = at
    if text[at - 1 : at] == ".":
        return at
    while start and _IN_MAILBOX.match(text, start - 1):
        start -= 1
    while start < at and not _STARTS_MAILBOX.match(text, start):
        start += 1
    return start


def _is_file(domain: re.Match[str]) -> bool:
    return domain[1].count(".") == 1 and domain[2].lower() in _FILE_ENDS
