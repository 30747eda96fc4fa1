"""SPDX licence expressions: parsing, normal form, and the decision under a licence policy.

Source   SPDX specification 3.0, annex on licence expressions: WITH binds tighter than AND, AND
         tighter than OR; operators in any one case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.licences.families import (
    COPYLEFT,
    NO_DERIVATIVES,
    NONCOMMERCIAL,
    RESERVED,
    SHARE_ALIKE,
    also_no_derivatives,
    base_name,
    family,
)

LicenceVerdict = Literal["allowed", "denied", "unknown"]
LONGEST_EXPRESSION = 500
_DEEPEST = 20
_TOKEN = re.compile(r"\s*(?:(\(|\))|([A-Za-z0-9][A-Za-z0-9.+:-]*))")
_WITHOUT_SUFFIX = {"GPL", "LGPL", "AGPL", "GFDL"}


@dataclass(frozen=True, kw_only=True)
class LicenceTerm:
    """A licence identifier, with its WITH exception ("" for none)."""

    licence: str
    exception: str = ""


@dataclass(frozen=True, kw_only=True)
class LicenceCompound:
    """Parts joined by "AND" (all hold) or "OR" (the licensee chooses)."""

    operator: str
    parts: tuple[Expression, ...]


Expression = LicenceTerm | LicenceCompound


class ExpressionError(ValueError):
    """Text that is not a licence expression."""


def parse(text: str) -> Expression:
    """Parse a licence expression; identifiers get the spelling of the SPDX list.

    Edge     an identifier that is not on the list is an error, unless it begins with LicenseRef-;
             GPL-2.0 and GPL-2.0+ become GPL-2.0-only and GPL-2.0-or-later.
    Raises   ExpressionError beyond 500 characters or 20 levels of brackets, and for invalid text.
    """
    if len(text) > LONGEST_EXPRESSION:
        raise ExpressionError(f"longer than {LONGEST_EXPRESSION} characters")
    tokens = list(_tokens(text))
    expression, rest = _either(tokens, 0, 0)
    if rest != len(tokens):
        raise ExpressionError(f"unexpected {tokens[rest]!r}")
    return expression


def write(expression: Expression) -> str:
    """The normal form: parts sorted and unique, brackets only where they are needed."""
    if isinstance(expression, LicenceTerm):
        widened = f" WITH {expression.exception}" if expression.exception else ""
        return expression.licence + widened
    parts = []
    for part in expression.parts:
        written = write(part)
        needs = isinstance(part, LicenceCompound) and part.operator != expression.operator
        parts.append(f"({written})" if needs and expression.operator == "AND" else written)
    return f" {expression.operator} ".join(sorted(set(parts)))


def join_expressions(operator: str, expressions: list[str]) -> str:
    """Join expressions, given as text, into one; "" for none."""
    parts = tuple(parse(e) for e in sorted(set(expressions)) if e)
    flat = [
        inner
        for part in parts
        for inner in (
            part.parts
            if isinstance(part, LicenceCompound) and part.operator == operator
            else (part,)
        )
    ]
    if not flat:
        return ""
    return (
        write(flat[0])
        if len(flat) == 1
        else write(LicenceCompound(operator=operator, parts=tuple(flat)))
    )


def licence_ids(expression: Expression) -> Iterator[str]:
    """The identifiers of the licences in an expression, from left to right."""
    if isinstance(expression, LicenceTerm):
        yield expression.licence
    else:
        for part in expression.parts:
            yield from licence_ids(part)


def licence_verdict(expression: str, config: LicenceConfig) -> LicenceVerdict:
    """Decide whether a corpus may contain a text under `expression`.

    OR: one allowed part is enough. AND: one denied part denies. An exception after WITH only adds
    rights, so its licence decides.

    Edge     "" and invalid text are unknown; the caller then applies config.unknown.
    Checked  tests/unit/corpus/licences/test_expression.py
    """
    try:
        return _judge(parse(expression), config)
    except ExpressionError:
        return "unknown"


def spdx_identifier(written: str) -> str:
    """The SPDX spelling of a licence identifier in any case, "" when it is not on the list."""
    if written[:11].lower() == "licenseref-" and len(written) <= 64:
        return f"LicenseRef-{written[11:]}"
    known, _ = _identifiers()
    plain = written.removesuffix("+")
    found = known.get(plain.lower(), "")
    if not found:
        return known.get(written.lower(), "")
    if found.split("-")[0] in _WITHOUT_SUFFIX and found[-1].isdigit():
        suffixed = f"{found}-or-later" if written.endswith("+") else f"{found}-only"
        return known.get(suffixed.lower(), found)
    return f"{found}+" if written.endswith("+") else found


def _judge(expression: Expression, config: LicenceConfig) -> LicenceVerdict:
    if isinstance(expression, LicenceTerm):
        return _judge_licence(expression.licence, config)
    verdicts = {_judge(part, config) for part in expression.parts}
    order: tuple[LicenceVerdict, ...] = ("allowed", "unknown", "denied")
    if expression.operator == "AND":
        order = ("denied", "unknown", "allowed")
    return next(v for v in order if v in verdicts)


def _judge_licence(licence: str, config: LicenceConfig) -> LicenceVerdict:
    base = base_name(licence)
    if base in map(base_name, config.deny):
        return "denied"
    # An entry counts as written and as `parse` would spell it: GPL-3.0+ is GPL-3.0-or-later.
    allowed = {each.lower() for a in config.allow for each in (a, spdx_identifier(a))}
    if licence.lower() in allowed or base in allowed:
        return "allowed"
    found = family(licence)
    if not found:
        return "unknown"
    denied = {
        SHARE_ALIKE: not config.share_alike,
        COPYLEFT: not config.copyleft,
        NONCOMMERCIAL: not config.noncommercial,
        NO_DERIVATIVES: not config.no_derivatives,
        RESERVED: True,
    }
    if also_no_derivatives(licence) and not config.no_derivatives:
        return "denied"
    return "denied" if denied.get(found, False) else "allowed"


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"{text[at : at + 20]!r} is not part of an expression")
        yield match[1] or match[2]
        at = match.end()


def _either(tokens: list[str], at: int, depth: int) -> tuple[Expression, int]:
    return _joined("OR", tokens, at, depth)


def _joined(operator: str, tokens: list[str], at: int, depth: int) -> tuple[Expression, int]:
    inner = _term if operator == "AND" else _all
    parts: list[Expression] = []
    while True:
        part, at = inner(tokens, at, depth)
        parts.append(part)
        if at == len(tokens) or tokens[at].upper() != operator:
            break
        at += 1
    return (
        parts[0] if len(parts) == 1 else LicenceCompound(operator=operator, parts=tuple(parts))
    ), at


def _all(tokens: list[str], at: int, depth: int) -> tuple[Expression, int]:
    return _joined("AND", tokens, at, depth)


def _term(tokens: list[str], at: int, depth: int) -> tuple[Expression, int]:
    if at == len(tokens):
        raise ExpressionError("it ends where a licence was expected")
    if tokens[at] == "(":
        if depth == _DEEPEST:
            raise ExpressionError(f"more than {_DEEPEST} brackets deep")
        inner, at = _either(tokens, at + 1, depth + 1)
        if at == len(tokens) or tokens[at] != ")":
            raise ExpressionError("a bracket is not closed")
        return inner, at + 1
    licence = spdx_identifier(tokens[at])
    if not licence:
        raise ExpressionError(f"{tokens[at]!r} is not an SPDX identifier")
    at += 1
    if at + 1 < len(tokens) and tokens[at].upper() == "WITH":
        _, exceptions = _identifiers()
        exception = exceptions.get(tokens[at + 1].lower(), "")
        if not exception:
            raise ExpressionError(f"{tokens[at + 1]!r} is not an SPDX exception")
        return LicenceTerm(licence=licence, exception=exception), at + 2
    return LicenceTerm(licence=licence), at


@cache
def _identifiers() -> tuple[dict[str, str], dict[str, str]]:
    file = resources.files("stamm.corpus.licences") / "identifiers.json"
    names = json.loads(file.read_text(encoding="utf-8"))
    return (
        {name.lower(): name for name in names["licences"]},
        {name.lower(): name for name in names["exceptions"]},
    )
