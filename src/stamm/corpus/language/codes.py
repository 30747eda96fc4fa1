"""Codes of languages and scripts: ISO 639-3, and tags of a text's language and script (deu_Latn).

A language that a page declares is a claim, not a measurement; an invalid one gives the tag "und".
The script of a letter is that of its Unicode name (ISO 15924 codes).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from stamm.base.files import read_json

_TABLES = read_json(Path(__file__).with_name("codes.json"))
# The first word of a letter's Unicode name, where the code is not the start of that word.
_SCRIPTS: Final[dict[str, str]] = _TABLES["scripts"]
# Japanese and Korean also use Han characters; this share of kana or Hangul is enough.
_MIXED_WITH_HAN = ("Jpan", "Kore")
_OWN_SHARE = 0.05


@functools.lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The script of one letter; "" for other characters, and for scripts without a code here."""
    if not character.isalpha():
        return ""
    return _SCRIPTS.get(unicodedata.name(character, "").split(" ")[0].split("-")[0], "")


def count_scripts(characters: Mapping[str, int]) -> dict[str, int]:
    """Counts of letters by script, from counts of characters; other scripts are under ""."""
    counts: dict[str, int] = {}
    for character, count in characters.items():
        if character.isalpha():
            script = script_of(character)
            counts[script] = counts.get(script, 0) + count
    return counts


def main_script(counts: Mapping[str, int]) -> tuple[str, float]:
    """The script of most letters, and its share of all letters; ("", 0.0) without letters.

    Edge     Han characters beside kana or Hangul count as Japanese or Korean; of two equally
             frequent scripts the first in alphabetical order is returned.
    """
    known = {script: count for script, count in counts.items() if script}
    letters = sum(counts.values())
    if not known:
        return "", 0.0
    for script in _MIXED_WITH_HAN:
        own, han = known.get(script, 0), known.get("Hani", 0)
        if own and han and own >= _OWN_SHARE * (own + han):
            known[script] = own + known.pop("Hani")
    best = max(sorted(known), key=lambda script: known[script])
    return best, known[best] / letters


def text_script(text: Iterable[str]) -> tuple[str, float]:
    """`main_script` of a text."""
    return main_script(count_scripts(Counter(text)))


UNDETERMINED: Final = "und"

# ISO 639-1; macrolanguages as their standard form, and the old codes that CLD2 keeps (iw, jw).
# Source: the code tables of ISO 639-3 (SIL International), and CLD2's list of languages.
# CLD2 has one Quechua; the ISO 639-3 codes of the Quechuan languages begin with these.
CLD2_QUECHUA: Final = "quz"
QUECHUAN: Final = ("qu", "qv", "qw", "qx")
_THREE_LETTERS: Final[dict[str, str]] = _TABLES["iso639_3"]
# The first of several two-letter codes; no: nn and nb are the written standards.
_TWO_LETTERS: Final = {
    three: two for two, three in reversed(_THREE_LETTERS.items()) if two not in ("iw", "jw", "no")
}
_CLD2 = {"zh-Hant": "cmn", "sr-ME": "srp"}
# Second codes of a language in the texts used here.
_SAME = {"nep": "npi", "fry": "fri", "ekk": "est", "lvs": "lav"}


def to_iso639_3(code: str) -> str:
    """The ISO 639-3 code for a code of two or three lower-case letters; "" when unknown."""
    if len(code) == 2:
        return _THREE_LETTERS.get(code, "")
    return _SAME.get(code, code) if len(code) == 3 else ""


def to_iso639_1(code: str) -> str:
    """The two-letter code for a code of ISO 639-3; `code` itself when there is none."""
    return _TWO_LETTERS.get(_SAME.get(code, code), code)


def cld2_code(code: str) -> str:
    """The ISO 639-3 code for one of CLD2's; "" for its jokes and for unnamed scripts."""
    if code in _CLD2:
        return _CLD2[code]
    joke = code.startswith("zz") or code in ("xxx", "tlh")
    return "" if joke else to_iso639_3(code)


__all__ = ["UNDETERMINED", "declared_language", "language_tag"]

_SAMPLE_LETTERS = 8000
_CODE = re.compile(r"([A-Za-z]{2,3})(?![A-Za-z])")
_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


def declared_language(lang: str, text: str) -> str:
    """The tag for a page that declares `lang` (an HTML lang attribute) over `text`.

    Edge   an unknown two-letter code or script gives "und".
    """
    match = _CODE.match(lang.strip())
    if match is None:
        return UNDETERMINED
    three = to_iso639_3(match[1].lower())
    script, _ = text_script(text[:_SAMPLE_LETTERS])
    return f"{three}_{script}" if three and script else UNDETERMINED


def language_tag(given: str, text: str) -> str:
    """The tag for a text whose input gives a tag, which is kept, or a code ("de-CH"), else ""."""
    tag = given if _TAG.fullmatch(given) else declared_language(given, text)
    return "" if tag.startswith(UNDETERMINED) else tag
