"""Licences of alignment rows: their SPDX expression, and whether a policy refuses them."""

from __future__ import annotations

import re
from collections.abc import Collection

from stamm.align.data.prepare_config import UNKNOWN
from stamm.corpus.licences.expression import (
    Expression,
    ExpressionError,
    LicenceTerm,
    parse,
    spdx_identifier,
)
from stamm.corpus.licences.families import also_no_derivatives, family
from stamm.corpus.licences.names import spdx_expression

_SHARE_ALIKE = re.compile(r"-sa(?:-|$)", re.IGNORECASE)


def normalized_licence(written: str) -> str:
    """The SPDX expression of a row's licence ("apache-2.0", "CC BY 4.0"), else as it is written."""
    return spdx_expression(written) or written


def refused_by(licence: str, refused: Collection[str]) -> str:
    """The entry of `refused` that refuses a row under `licence`; "" when none does.

    licence   an SPDX expression, another text, or ""
    refused   families, SPDX identifiers and "unknown"; see `PrepareConfig.refused_licences`

    OR: one part that is not refused is enough. AND: one refused part refuses.
    Edge     CC-BY-NC-ND is refused with noncommercial and with no-derivatives, CC-BY-NC-SA with
             noncommercial and with share-alike
    Checked  tests/unit/align/test_licence_policy.py
    """
    try:
        return _refused(parse(licence), {each.lower() for each in map(_spelled, refused)})
    except ExpressionError:
        return UNKNOWN if UNKNOWN in refused else ""


def _spelled(refused: str) -> str:
    return spdx_identifier(refused) or refused


def _refused(expression: Expression, refused: Collection[str]) -> str:
    if isinstance(expression, LicenceTerm):
        found = family(expression.licence) or UNKNOWN
        names = [expression.licence, found]
        if also_no_derivatives(expression.licence):
            names.append("no-derivatives")
        if _SHARE_ALIKE.search(expression.licence):
            names.append("share-alike")
        return next((name for name in names if name.lower() in refused), "")
    verdicts = [_refused(part, refused) for part in expression.parts]
    if expression.operator == "OR" and not all(verdicts):
        return ""
    return next(filter(None, verdicts), "")
