"""SPDX expressions of licence addresses and short names."""

from __future__ import annotations

import re

from stamm.corpus.licences.expression import ExpressionError, parse, spdx_identifier, write
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED

_LONGEST = 500
_COMMONS = re.compile(
    r"(?:https?:)?//(?:[a-z]{1,12}\.)?creativecommons\.org/(?:licen[sc]es?|publicdomain)/"
    r"([a-z+-]{1,20})(?:/([0-9](?:\.[0-9]){0,2}))?(?:/([a-z]{2,6}))?(?:[/?#.:_-]|$)"
)
_COMMONS_NAME = re.compile(
    r"(?:cc|creative commons)[ :_-]*((?:by|attribution)(?:[ ,/_-]*(?:nc|nd|sa|non-?commercial|"
    r"share-?alike|no-?deriv\w{0,8}))*)[ ,v_-]*([0-9]\.[0-9])?(?![0-9a-z])"
)
# "Unless noted otherwise" and "sofern nicht anders angegeben" deny nothing.
_DENIED = re.compile(
    r"\b(?:not|no longer|never)(?: be)? (?:licen[cs]ed|released|published|available|covered|under|"
    r"(?:a )?cc\b|(?:a )?creative)|\bno (?:cc|creative commons|licen[cs]e)\b|"
    r"\bnicht (?:mehr )?(?:unter|lizenziert|frei)|\bkeine? (?:cc|creative|lizenz)|"
    r"\b(?:n['’]est|ne sont|n['’]est plus) pas\b|\bno (?:está|se )|\bnon (?:è|sono)\b"
)
_PUBLIC = {
    "zero": "CC0-1.0",
    "mark": "CC-PDM-1.0",
    "certification": "CC-PDDC",
    "publicdomain": "CC-PDDC",
}
_PORTS = ("at", "au", "de", "fr", "igo", "jp", "nl", "uk", "us")
# Patterns of addresses after "www."; the first that matches counts.
_ADDRESSES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), expression)
    for pattern, expression in (
        (r"(?:spdx\.org/licenses|opensource\.org/licenses?|choosealicense\.com/licenses)/", ""),
        (r"apache\.org/licenses/license-2\.0", "Apache-2.0"),
        (r"gnu\.org/(?:licenses|copyleft)/", "gnu"),
        (r"mozilla\.org/(?:en-us/)?mpl/2\.0", "MPL-2.0"),
        (r"unlicense\.org(?:/|$)", "Unlicense"),
        (r"wtfpl\.net", "WTFPL"),
        (r"opendatacommons\.org/licenses/odbl", "ODbL-1.0"),
        (r"opendatacommons\.org/licenses/by", "ODC-By-1.0"),
        (r"opendatacommons\.org/licenses/pddl", "PDDL-1.0"),
        (r"nationalarchives\.gov\.uk/doc/open-government-licence/version/([123])", "OGL-UK-{}.0"),
        (r"etalab\.gouv\.fr/licence-ouverte", "etalab-2.0"),
        (r"govdata\.de/dl-de/by-2-0", "DL-DE-BY-2.0"),
        (r"data\.norge\.no/nlod/(?:[a-z]{2}/)?([12])\.0", "NLOD-{}.0"),
    )
)
_GNU = re.compile(r"(?:old-licenses/)?(agpl|lgpl|gpl|fdl)-([123]\.[0-9])")
_NAMES = {
    "public domain": "LicenseRef-Public-Domain",
    "public-domain": "LicenseRef-Public-Domain",
    "publicdomain": "LicenseRef-Public-Domain",
    "gemeinfrei": "LicenseRef-Public-Domain",
    "domaine public": "LicenseRef-Public-Domain",
    "cc0": "CC0-1.0",
    "cc0 1.0": "CC0-1.0",
    "cc0 1.0 universal": "CC0-1.0",
    "cc zero": "CC0-1.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "mit license": "MIT",
    "the mit license": "MIT",
    "odbl": "ODbL-1.0",
}
_RESERVED = re.compile(r"all rights reserved|alle rechte vorbehalten|tous droits r[ée]serv[ée]s")


def spdx_expression(value: str) -> str:
    """The SPDX expression of a licence address, identifier or short name, else "".

    Creative Commons deeds in every version, port and language; a port that is not on the SPDX list
    gives the unported licence of that version, and a deed without version LicenseRef-CC-BY.

    Edge     a sentence that denies a licence gives "", and one that reserves all rights beside a
             licence reserves them. Of an address the first 500 characters are read; other text of
             that length gives "", since its end may revoke its beginning. A deed of an unknown kind
             gives "".
    Checked  tests/unit/corpus/licences/test_names.py
    """
    written = " ".join(value[:_LONGEST].split())
    lowered = written.lower()
    if not lowered:
        return ""
    if "//" in lowered:
        return _commons_deed(lowered) or _address(lowered)
    if len(value) >= _LONGEST or denies_licence(written):
        return ""
    try:
        return write(parse(written))
    except ExpressionError:
        pass
    return _NAMES.get(lowered.strip(" .")) or _reserved(lowered) or _commons_name(lowered)


def denies_licence(sentence: str) -> bool:
    """Whether a sentence denies a licence."""
    return _DENIED.search(" ".join(sentence.lower().split())) is not None


def _commons_deed(lowered: str) -> str:
    match = _COMMONS.search(lowered)
    if match is None:
        return ""
    terms, version, port = match[1], match[2], match[3]
    if terms in _PUBLIC:
        return _PUBLIC[terms]
    return _commons(terms.split("-"), version, port)


def _commons(terms: list[str], version: str | None, port: str | None) -> str:
    # Versions 1.0 to 2.0 have deeds without BY, and by-nd-nc beside by-nc-nd.
    if not set(terms) <= {"by", "nc", "nd", "sa"} or len(set(terms)) != len(terms):
        return ""
    kind = "-".join(term for term in ("by", "nc", "nd", "sa") if term in terms).upper()
    if "BY" not in kind:
        return spdx_identifier(f"CC-{kind}-{version}") or f"LicenseRef-CC-BY-{kind}"
    if not version:
        return f"LicenseRef-CC-{kind}"
    ported = spdx_identifier(f"CC-{kind}-{version}-{port}") if port in _PORTS else ""
    return ported or spdx_identifier(f"CC-{kind}-{version}") or f"LicenseRef-CC-{kind}"


def _commons_name(lowered: str) -> str:
    match = _COMMONS_NAME.search(lowered)
    if match is None:
        return ""
    terms = ["by"]
    for short, long in (
        ("nc", "non-? ?commercial"), ("nd", "no-? ?deriv"), ("sa", "share-? ?alike")
    ):  # fmt: skip
        # Spelled out, a term may also follow behind the name: "CC BY, non-commercial use only".
        if re.search(f"{short}|{long}", match[1]) or re.search(long, lowered):
            terms.append(short)
    return _commons(terms, match[2], None)


def _address(lowered: str) -> str:
    place = lowered.split("//", 1)[1].removeprefix("www.")
    for pattern, expression in _ADDRESSES:
        match = pattern.match(place)
        if match is None:
            continue
        rest = place[match.end() :]
        if expression == "gnu":
            gnu = _GNU.match(rest)
            return spdx_identifier(f"{gnu[1].replace('fdl', 'gfdl')}-{gnu[2]}") if gnu else ""
        if expression:
            return expression.format(*match.groups())
        name = re.sub(r"\.(?:html|json|txt|php)$", "", re.split(r"[/?#]", rest)[0])
        return spdx_identifier(name)
    return ""


def _reserved(lowered: str) -> str:
    return ALL_RIGHTS_RESERVED if _RESERVED.search(lowered) else ""
