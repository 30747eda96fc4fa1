"""SPDX expressions of licence addresses and short names."""

from __future__ import annotations

import re
from pathlib import Path

from stamm.base.files import read_json
from stamm.corpus.licences.expression import (
    ExpressionError,
    join_expressions,
    parse,
    spdx_identifier,
    write,
)
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS

_WORDS = read_json(Path(__file__).with_name("words.json"))
_LONGEST = 500
_COMMONS = re.compile(
    r"(?:https?:)?//(?:[a-z]{1,12}\.)?creativecommons\.org/(?:licen[sc]es?|publicdomain)/"
    r"([a-z+-]{1,20})(?:/([0-9](?:\.[0-9]){0,2}))?(?:/([a-z]{2,6}))?(?:[/?#.:_-]|$)"
)
_COMMONS_NAME = re.compile(
    r"(?:cc|creative commons)[ :_-]*((?:by|attribution)(?:[ ,/_-]*(?:nc|nd|sa|non-?commercial|"
    r"share-?alike|no-?deriv\w{0,8}))*)[ ,v_-]*([0-9]\.[0-9])?(?![0-9a-z])",
    re.IGNORECASE,
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
_NAMES: dict[str, str] = _WORDS["names"]
_NAME = re.compile(
    r"(?<![\w.-])(?:"
    + "|".join(map(re.escape, sorted(_NAMES, key=len, reverse=True)))
    + r")(?![\w-])",
    re.IGNORECASE,
)
_RESERVED = re.compile(r"all rights reserved|alle rechte vorbehalten|tous droits r[ée]serv[ée]s")
_URL = re.compile(r"(?:https?:)?//[^\s<>\"'(),;|\[\]\0]+", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.+-]*[A-Za-z0-9+])?")
_SPELLED_TERM = re.compile(
    r"\b(?:non-? ?commercial|no-? ?deriv\w*|share-? ?alike)\b", re.IGNORECASE
)
# Phrases that add no terms: holders, exceptions that are stated elsewhere, later versions.
_HARMLESS_PHRASE = re.compile(
    r"(?:©|\(c\)|\b[Cc]opyright)[\s©]*(?:\(c\))?[\d\s,–-]*(?:by )?"
    r"(?:(?:[A-Z][\w.&’'-]*|the|and|of|von|de)\b\.?\s*){0,8}|"
    r"\b(?i:(?:unless|except where|if not|sofern nicht|soweit nicht|wo nicht)"
    r" (?:(?:otherwise|anders) )?(?:noted|stated|indicated|specified|angegeben|gesagt|vermerkt)"
    r"(?: otherwise)?|"
    r"sauf (?:mention|indication) contraire|or (?:any )?later(?: versions?)?|some rights reserved)"
)
_HARMLESS = frozenset(_WORDS["harmless"])
_OF_TEXT, _OF_OTHERS = frozenset(_WORDS["of_text"]), frozenset(_WORDS["of_others"])
_OR, _CHOICE = {"or", "oder", "ou"}, {"dual", "dually", "either", "choice"}
_AND = {"and", "und", "et", "y", "e", "sowie", "both"}


def spdx_expression(value: str) -> str:
    """The SPDX expression of a licence address, identifier or short name, else "".

    Creative Commons deeds in every version, port and language; a port that is not on the SPDX list
    gives the unported licence of that version, and a deed without version LicenseRef-CC-BY.
    All licences of a value hold (AND), unless it offers a choice (OR). Words beside them that are
    not known to be harmless add LicenseRef-Unknown-Terms.

    Edge     a sentence that denies a licence gives "", and one that reserves all rights beside a
             licence reserves them. Of an address the first 500 characters are read; other text of
             that length gives "", since its end may revoke its beginning. A deed of an unknown kind
             gives "".
    Checked  tests/unit/corpus/licences/test_names.py
    """
    written = " ".join(value[:_LONGEST].replace("\0", " ").split())
    lowered = written.lower()
    is_address = _URL.fullmatch(written) is not None
    if not lowered or denies_licence(written) or (len(value) >= _LONGEST and not is_address):
        return ""
    try:
        return write(parse(written))
    except ExpressionError:
        pass
    return _NAMES.get(lowered.strip(" .")) or _reserved(lowered) or _all_named(written)


def _all_named(written: str) -> str:
    """All licences that a text names, joined, with LicenseRef-Unknown-Terms for other words."""
    named: list[str] = []

    def replaced(expression: str, text: str) -> str:
        if expression:
            named.append(expression)
        return " \0 " if expression else text

    lowered = written.lower()
    rest = _URL.sub(lambda m: replaced(_of_address(m[0].lower()), " ? "), written)
    rest = _NAME.sub(lambda m: replaced(_NAMES[m[0].lower()], m[0]), rest)
    rest = _WORD.sub(lambda m: replaced(_identifier(m[0]), m[0]), rest)
    before = len(named)
    rest = _COMMONS_NAME.sub(lambda m: replaced(_commons_name(m, lowered), m[0]), rest)
    if not named:
        return ""
    if len(named) > before:
        rest = _SPELLED_TERM.sub(" ", rest)
    gaps = [
        set(re.findall(r"[^\W_]+|\?", gap.lower()))
        for gap in _HARMLESS_PHRASE.sub(" ", rest).split("\0")
    ]
    words = set[str]().union(*gaps)
    subjects = words & (_OF_TEXT | _OF_OTHERS)
    harmless = _HARMLESS | _OF_TEXT | (_OF_OTHERS if subjects & _OF_TEXT else set())
    between = set[str]().union(*gaps[1:-1])
    choice = not subjects and (
        bool(words & _CHOICE) or (len(gaps) > 2 and bool(gaps[-2] & _OR) and not between & _AND)
    )
    if not words <= harmless:
        return join_expressions("AND", [*named, UNKNOWN_TERMS])
    # "Creative Commons Attribution (…/by/4.0/)" is one licence.
    versions = {re.sub(r"-[0-9].*", "", f"LicenseRef-{name}") for name in named}
    exact = [name for name in named if name not in versions]
    return join_expressions("OR" if choice else "AND", exact)


def _identifier(word: str) -> str:
    """A word as SPDX identifier; without a digit only in its own spelling: "mit" is German."""
    name = spdx_identifier(word)
    return name if name == word or re.search(r"\d", word) else ""


def denies_licence(sentence: str) -> bool:
    """Whether a sentence denies a licence."""
    return _DENIED.search(" ".join(sentence.lower().split())) is not None


def _of_address(lowered: str) -> str:
    """The licences of an address; of one that has deeds of Creative Commons in it, all of them."""
    deeds = [_commons_deed(match) for match in _COMMONS.finditer(lowered)]
    if "" in deeds:
        return ""
    return join_expressions("AND", deeds) if deeds else _address(lowered)


def _commons_deed(match: re.Match[str]) -> str:
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


def _commons_name(match: re.Match[str], lowered: str) -> str:
    terms = ["by"]
    for short, long in (
        ("nc", "non-? ?commercial"), ("nd", "no-? ?deriv"), ("sa", "share-? ?alike")
    ):  # fmt: skip
        # A term can also follow the name, spelled out: "CC BY, non-commercial use only".
        if re.search(f"{short}|{long}", match[1].lower()) or re.search(long, lowered):
            terms.append(short)
    return _commons(terms, match[2], None)


def _address(lowered: str) -> str:
    address = lowered.split("//", 1)[1].removeprefix("www.")
    for pattern, expression in _ADDRESSES:
        match = pattern.match(address)
        if match is None:
            continue
        rest = address[match.end() :]
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
