"""Families of licences by SPDX identifier, and their rank by restrictiveness.

A family describes what a licence allows with a text in general, not whether training needs a
licence; that is the user's decision.

Source   the SPDX licence list for the identifiers; the texts of the licences for the families.
"""

from __future__ import annotations

import re
from pathlib import Path

from stamm.base.files import read_json

# From the freest to the most restrictive.
PUBLIC, PERMISSIVE, ATTRIBUTION = "public-domain", "permissive", "attribution"
SHARE_ALIKE, COPYLEFT = "share-alike", "copyleft"
NO_DERIVATIVES, NONCOMMERCIAL, RESERVED = "no-derivatives", "noncommercial", "reserved"
FAMILIES = (
    PUBLIC, PERMISSIVE, ATTRIBUTION, SHARE_ALIKE, COPYLEFT, NO_DERIVATIVES, NONCOMMERCIAL, RESERVED
)  # fmt: skip

ALL_RIGHTS_RESERVED = "LicenseRef-All-Rights-Reserved"
UNKNOWN_TERMS = "LicenseRef-Unknown-Terms"

_MEMBERS: dict[str, list[str]] = read_json(Path(__file__).with_name("words.json"))["families"]
_FAMILY = {name.lower(): family for family, names in _MEMBERS.items() for name in names}
_CREATIVE_COMMONS = re.compile(
    r"(?:licenseref-)?cc-(by(?:-nc)?(?:-sa|-nd)?)(?:-[0-9.]+)?(?:-[a-z]+)?"
)
_BY_TERMS = {
    "by": ATTRIBUTION,
    "by-sa": SHARE_ALIKE,
    "by-nd": NO_DERIVATIVES,
    "by-nc": NONCOMMERCIAL,
    "by-nc-sa": NONCOMMERCIAL,
    "by-nc-nd": NONCOMMERCIAL,
}
_WHICH_VERSION = re.compile(r"(?:\+|-only|-or-later)$")


def base_name(identifier: str) -> str:
    """An identifier in lower case, without "+", "-only" and "-or-later"."""
    return _WHICH_VERSION.sub("", identifier.lower())


def family(identifier: str) -> str:
    """The family of an SPDX licence identifier, "" when it is unknown.

    Edge   GPL-3.0-only, GPL-3.0-or-later and GPL-3.0+ are GPL-3.0 here; case does not matter.
    """
    name = base_name(identifier)
    known_family = _FAMILY.get(name)
    if known_family is not None:
        return known_family
    commons = _CREATIVE_COMMONS.fullmatch(name)
    return _BY_TERMS.get(commons[1], "") if commons else ""


def also_no_derivatives(identifier: str) -> bool:
    """Whether a licence forbids adaptations, alone or together with commercial use."""
    return bool(re.search(r"-nd(?:-|$)", identifier.lower()))


def rank(identifier: str) -> int:
    """Restrictiveness of a licence: 0 for the public domain; -1 for an unknown family."""
    licence_family = family(identifier)
    return FAMILIES.index(licence_family) if licence_family else -1
