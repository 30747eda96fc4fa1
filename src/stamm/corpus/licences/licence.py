"""A detected licence: its SPDX expression, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.corpus.licences.expression import join_expressions, licence_ids, parse
from stamm.corpus.licences.families import rank

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
