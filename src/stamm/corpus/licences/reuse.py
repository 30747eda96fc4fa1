"""Licences that a repository states for files by their paths: REUSE.toml, .reuse/dep5.

Source   REUSE specification 3.3, "REUSE.toml" and "DEP5"; the DEP5 format: Debian, "Machine-readable
         debian/copyright file" 1.0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stamm.corpus.licences.expression import ExpressionError, join_expressions, parse, write
from stamm.corpus.licences.families import UNKNOWN_TERMS

RULE_FILES = ("REUSE.toml", ".reuse/dep5")
LONGEST_RULES = 1_000_000  # characters
_MOST_RULES = 10_000
_LONGEST_PATTERN = 1000
_MOST_STARS = 4  # matching takes the length of a path to this power


@dataclass(frozen=True, kw_only=True)
class PathRule:
    """A licence for the files whose path from the folder of the rules matches.

    also   whether it holds beside the licence that a file states itself
    """

    pattern: re.Pattern[str]
    expression: str
    also: bool = False


def path_rules(name: str, text: str) -> list[PathRule]:
    """The rules of a REUSE.toml or dep5 file, in order: the last that matches a path holds.

    Edge   a file that cannot be read gives LicenseRef-Unknown-Terms for every path.
    """
    read = _toml_rules if name == "REUSE.toml" else _dep5_rules
    try:
        if len(text) > LONGEST_RULES:
            raise ValueError(f"over {LONGEST_RULES} characters")
        rules = list(read(text))
        if len(rules) > _MOST_RULES:
            raise ValueError(f"over {_MOST_RULES} rules")
    except (ValueError, TypeError, KeyError, RecursionError):
        return [PathRule(pattern=re.compile(".*", re.DOTALL), expression=UNKNOWN_TERMS)]
    return rules


def spdx_or_unknown(written: str) -> str:
    """A licence expression in its normal form; LicenseRef-Unknown-Terms for other text."""
    try:
        return write(parse(written))
    except ExpressionError:
        return UNKNOWN_TERMS


def _toml_rules(text: str) -> Iterator[PathRule]:
    for table in tomllib.loads(text)["annotations"]:
        licences = _listed(table.get("SPDX-License-Identifier", []))
        expression = join_expressions("AND", [spdx_or_unknown(each) for each in licences])
        for path in _listed(table["path"]):
            # "*" ends at a slash, "**" does not; a backslash takes the next character as it is.
            also = table.get("precedence", "closest") != "closest"
            yield _rule(path, r"\\.|\*+|[^*\\]+|\\", "[^/]*", expression, also)


def _dep5_rules(text: str) -> Iterator[PathRule]:
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields = {
            name.strip().lower(): value
            for name, value in re.findall(r"(?m)^([A-Za-z-]+):((?:.*)(?:\n[ \t].*)*)", paragraph)
        }
        if "files" in fields:
            licence = (fields.get("license", "").strip().splitlines() or [""])[0]
            for path in fields["files"].split():
                yield _rule(path, r"\\.|\*|\?|[^*?\\]+|\\", ".*", spdx_or_unknown(licence), True)


def _rule(path: str, tokens: str, star: str, expression: str, also: bool) -> PathRule:
    if len(path) > _LONGEST_PATTERN or len(re.findall(r"\*+", path)) > _MOST_STARS:
        raise ValueError("a path that is too long, or has too many stars")
    parts = []
    for token in re.findall(tokens, path.removeprefix("./"), re.DOTALL):
        if token.startswith("*"):
            parts.append(star if len(token) == 1 else ".*")
        else:
            parts.append(
                "." if token == "?" else re.escape(token[-1] if token[0] == "\\" else token)
            )
    return PathRule(pattern=re.compile("".join(parts), re.DOTALL), expression=expression, also=also)


def _listed(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in listed):
        raise TypeError("not text")
    return listed
