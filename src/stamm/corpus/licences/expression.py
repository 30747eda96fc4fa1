"""SPDX licence expressions: parsing, normal form, and the decision under a licence policy.

Source   SPDX specification 3.0, annex on licence expressions: WITH binds tighter than AND, AND
         tighter than OR; operators in any one case.
"""

from __future__ import annotations

import json
import re
from collections import deque
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
    rank,
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
    tokens = deque(_tokens(text))
    expression = _joined(("OR", "AND"), tokens, 0)
    if tokens:
        raise ExpressionError(f"unexpected {tokens[0]!r}")
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
    """Whether a corpus may contain a text under `expression`; "" and invalid text are unknown.

    OR: one allowed part is enough. AND: one denied part denies. An exception only adds rights.
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
    identifier = known.get(plain.lower(), "")
    if not identifier:
        return known.get(written.lower(), "")
    if identifier.split("-")[0] in _WITHOUT_SUFFIX and identifier[-1].isdigit():
        suffixed = f"{identifier}-or-later" if written.endswith("+") else f"{identifier}-only"
        return known.get(suffixed.lower(), identifier)
    return f"{identifier}+" if written.endswith("+") else identifier


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
    allowed = {spelling.lower() for a in config.allow for spelling in (a, spdx_identifier(a))}
    if licence.lower() in allowed or base in allowed:
        return "allowed"
    licence_family = family(licence)
    if not licence_family:
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
    return "denied" if denied.get(licence_family, False) else "allowed"


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"{text[at : at + 20]!r} is not part of an expression")
        yield match[1] or match[2]
        at = match.end()


def _joined(operators: tuple[str, ...], tokens: deque[str], depth: int) -> Expression:
    """Terms joined by the first of `operators`, each of terms joined by the tighter others."""
    operator, *tighter = operators
    parts: list[Expression] = []
    while True:
        parts.append(_joined(tuple(tighter), tokens, depth) if tighter else _term(tokens, depth))
        if not tokens or tokens[0].upper() != operator:
            break
        tokens.popleft()
    return parts[0] if len(parts) == 1 else LicenceCompound(operator=operator, parts=tuple(parts))


def _term(tokens: deque[str], depth: int) -> Expression:
    if not tokens:
        raise ExpressionError("it ends where a licence was expected")
    token = tokens.popleft()
    if token == "(":
        if depth == _DEEPEST:
            raise ExpressionError(f"more than {_DEEPEST} brackets deep")
        inner = _joined(("OR", "AND"), tokens, depth + 1)
        if not tokens or tokens.popleft() != ")":
            raise ExpressionError("a bracket is not closed")
        return inner
    licence = spdx_identifier(token)
    if not licence:
        raise ExpressionError(f"{token!r} is not an SPDX identifier")
    if len(tokens) < 2 or tokens[0].upper() != "WITH":
        return LicenceTerm(licence=licence)
    tokens.popleft()
    named = tokens.popleft()
    exception = _identifiers()[1].get(named.lower(), "")
    if not exception:
        raise ExpressionError(f"{named!r} is not an SPDX exception")
    return LicenceTerm(licence=licence, exception=exception)


@cache
def _identifiers() -> tuple[dict[str, str], dict[str, str]]:
    file = resources.files("stamm.corpus.licences") / "identifiers.json"
    names = json.loads(file.read_text(encoding="utf-8"))
    return (
        {name.lower(): name for name in names["licences"]},
        {name.lower(): name for name in names["exceptions"]},
    )


MOST_EVIDENCE = 8
LONGEST_VALUE = 200


@dataclass(frozen=True, kw_only=True)
class LicenceEvidence:
    """One signal about a licence.

    signal       its place: header, rel, json-ld, microdata, rdfa, meta, footer, file, spdx
    value        as written, cut at 200 characters
    expression   as an SPDX expression; "" when it names no known licence
    whole        whether it applies to the whole; False for a figure, a comment, a third party
    """

    signal: str
    value: str
    expression: str
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Licence:
    """The licence of a page or a repository.

    expression   SPDX; "" without a known licence of the whole
    evidence     at most 8 signals; the deciding ones come first
    """

    expression: str = ""
    evidence: tuple[LicenceEvidence, ...] = ()


def strictness(expression: str) -> int:
    """The rank of the most restrictive licence in an expression; -1 when no family is known."""
    return max((rank(name) for name in licence_ids(parse(expression))), default=-1)


def strictest_licence(evidence: list[LicenceEvidence]) -> Licence:
    """The licences of the signals, which all hold (CC-BY-3.0 AND CC-BY-4.0), with the evidence.

    Signals about a part, and those without a known licence, do not decide. The strictest comes
    first in the evidence; of more than 8 licences the strictest 8 are named.
    """
    seen = list(dict.fromkeys(evidence))
    decisive = [e for e in seen if e.whole and e.expression]
    decisive.sort(key=lambda e: -strictness(e.expression))
    rest = [e for e in seen if e not in decisive]
    expressions = list(dict.fromkeys(e.expression for e in decisive))[:MOST_EVIDENCE]
    return Licence(
        expression=join_expressions("AND", expressions),
        evidence=tuple([*decisive, *rest][:MOST_EVIDENCE]),
    )
