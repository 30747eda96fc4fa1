"""Families of licences by SPDX identifier, and their rank by restrictiveness.

A family describes what a licence allows with a text in general, not whether training needs a
licence; that is the user's decision. Change FAMILIES_VERSION with this table.

Source   the SPDX licence list for the identifiers; the texts of the licences for the families.
"""

from __future__ import annotations

import re

FAMILIES_VERSION = "2026-11-22"

# From the freest to the most restrictive.
PUBLIC, PERMISSIVE, ATTRIBUTION = "public-domain", "permissive", "attribution"
SHARE_ALIKE, COPYLEFT = "share-alike", "copyleft"
NO_DERIVATIVES, NONCOMMERCIAL, RESERVED = "no-derivatives", "noncommercial", "reserved"
FAMILIES = (
    PUBLIC, PERMISSIVE, ATTRIBUTION, SHARE_ALIKE, COPYLEFT, NO_DERIVATIVES, NONCOMMERCIAL, RESERVED
)  # fmt: skip

ALL_RIGHTS_RESERVED = "LicenseRef-All-Rights-Reserved"
UNKNOWN_TERMS = "LicenseRef-Unknown-Terms"

_MEMBERS = {
    PUBLIC: "CC0-1.0 CC-PDM-1.0 CC-PDDC PDDL-1.0 Unlicense 0BSD MIT-0 WTFPL LicenseRef-Public-Domain",
    PERMISSIVE: (
        "AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause BSD-2-Clause "
        "BSD-2-Clause-Patent BSD-3-Clause BSD-3-Clause-Clear BSD-3-Clause-LBNL BSD-4-Clause BSL-1.0 "
        "CNRI-Python ECL-2.0 FTL HPND HPND-sell-variant ICU IJG ISC libpng-2.0 Libpng MIT "
        "MIT-Modern-Variant MIT-CMU MIT-feh MS-PL MulanPSL-2.0 NCSA OFL-1.1 OpenSSL PHP-3.01 "
        "PostgreSQL PSF-2.0 Python-2.0 Python-2.0.1 Ruby TCL Unicode-3.0 Unicode-DFS-2016 UPL-1.0 "
        "BSD-2-Clause-FreeBSD BSD-2-Clause-NetBSD Nunit StandardML-NJ SMLNJ bzip2-1.0.5 Net-SNMP "
        "Vim W3C X11 zlib-acknowledgement Zlib ZPL-2.1 bzip2-1.0.6 curl"
    ),
    ATTRIBUTION: (
        "ODC-By-1.0 OGL-UK-3.0 OGL-UK-2.0 OGL-UK-1.0 etalab-2.0 OGL-Canada-2.0 NLOD-2.0 NLOD-1.0 "
        "DL-DE-BY-2.0 CDLA-Permissive-1.0 CDLA-Permissive-2.0 LicenseRef-CC-BY"
    ),
    SHARE_ALIKE: "ODbL-1.0 CDLA-Sharing-1.0 CC-SA-1.0 LicenseRef-CC-BY-SA",
    COPYLEFT: (
        "AGPL-1.0 AGPL-3.0 CDDL-1.0 CDDL-1.1 CECILL-2.0 CECILL-2.1 CECILL-C CPL-1.0 EPL-1.0 EPL-2.0 "
        "EUPL-1.1 EUPL-1.2 GFDL-1.1 GFDL-1.2 GFDL-1.3 GPL-1.0 GPL-2.0 GPL-3.0 LGPL-2.0 LGPL-2.1 "
        "LGPL-3.0 LPPL-1.3c MPL-1.0 MPL-1.1 MPL-2.0 MS-RL OSL-3.0 QPL-1.0 SSPL-1.0 "
        "GPL-2.0-with-autoconf-exception GPL-2.0-with-bison-exception GPL-2.0-with-font-exception "
        "GPL-2.0-with-classpath-exception GPL-2.0-with-GCC-exception eCos-2.0 wxWindows "
        "GPL-3.0-with-autoconf-exception GPL-3.0-with-GCC-exception"
    ),
    NO_DERIVATIVES: "LicenseRef-CC-BY-ND",
    NONCOMMERCIAL: (
        "PolyForm-Noncommercial-1.0.0 LicenseRef-CC-BY-NC LicenseRef-CC-BY-NC-SA "
        "LicenseRef-CC-BY-NC-ND"
    ),
    RESERVED: f"BUSL-1.1 Elastic-2.0 JSON {ALL_RIGHTS_RESERVED}",
}  # fmt: skip
_FAMILY = {name.lower(): family for family, names in _MEMBERS.items() for name in names.split()}
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
    found = _FAMILY.get(name)
    if found is not None:
        return found
    commons = _CREATIVE_COMMONS.fullmatch(name)
    return _BY_TERMS.get(commons[1], "") if commons else ""


def also_no_derivatives(identifier: str) -> bool:
    """Whether a licence forbids adaptations, alone or together with commercial use."""
    return bool(re.search(r"-nd(?:-|$)", identifier.lower()))


def rank(identifier: str) -> int:
    """Restrictiveness of a licence: 0 for the public domain; -1 for an unknown family."""
    found = family(identifier)
    return FAMILIES.index(found) if found else -1
