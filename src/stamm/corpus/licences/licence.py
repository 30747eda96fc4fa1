"""What was found out about a licence: the expression, and every signal that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.corpus.licences.expression import join, licences, parse
from stamm.corpus.licences.families import rank

MOST_EVIDENCE = 8
LONGEST_VALUE = 200


@dataclass(frozen=True, kw_only=True)
class LicenceEvidence:
    """One signal about a licence.

    signal       where it stands: header, rel, json-ld, microdata, rdfa, meta, footer, file, spdx
    value        as written, cut at 200 characters
    expression   what it names as an SPDX expression; "" when it names none that is known
    whole        whether it speaks of the whole; False for a figure, a comment, a third party
    """

    signal: str
    value: str
    expression: str
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Licence:
    """The licence of a page or a repository.

    expression   SPDX; "" when nothing that speaks of the whole names a known licence
    evidence     at most 8 signals; those that decide come first
    """

    expression: str = ""
    evidence: tuple[LicenceEvidence, ...] = ()


def strictness(expression: str) -> int:
    """The rank of the most restrictive licence in an expression; -1 when no family is known."""
    return max((rank(name) for name in licences(parse(expression))), default=-1)


def most_restrictive(evidence: list[LicenceEvidence]) -> Licence:
    """The licence that the strictest of the signals names, with all of them as evidence.

    Signals that speak of a part, and those that name nothing known, decide nothing. Two licences
    of equal rank hold both: CC-BY-3.0 AND CC-BY-4.0.
    """
    seen = list(dict.fromkeys(evidence))
    named = [e for e in seen if e.whole and e.expression]
    strictest = max((strictness(e.expression) for e in named), default=-1)
    decisive = [e for e in named if strictness(e.expression) == strictest]
    rest = [e for e in seen if e not in decisive]
    expressions = list(dict.fromkeys(e.expression for e in decisive))[:MOST_EVIDENCE]
    return Licence(
        expression=join("AND", expressions), evidence=tuple([*decisive, *rest][:MOST_EVIDENCE])
    )
