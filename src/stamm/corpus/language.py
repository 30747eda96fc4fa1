"""The language tag of a page that declares one: three-letter code and script (deu_Latn).

A declaration is a claim of the page, not a measurement; where it cannot be read the tag is "und".
"""

from __future__ import annotations

import re
import unicodedata

UNDETERMINED = "und"
_SAMPLE_LETTERS = 2000
_TAG = re.compile(r"([A-Za-z]{2,3})(?![A-Za-z])")

# Two-letter codes of ISO 639-1 and their ISO 639-3 codes; macrolanguages as the standard form.
_CODES = (
    "ar:arb be:bel bg:bul bn:ben bs:bos ca:cat cs:ces cy:cym da:dan de:deu el:ell en:eng "
    "eo:epo es:spa et:est eu:eus fa:pes fi:fin fr:fra ga:gle gl:glg he:heb hi:hin hr:hrv "
    "hu:hun id:ind is:isl it:ita ja:jpn ko:kor la:lat lb:ltz lt:lit lv:lav ms:zsm mt:mlt "
    "nb:nob nl:nld nn:nno no:nob pl:pol pt:por rm:roh ro:ron ru:rus sa:san sk:slk sl:slv "
    "sq:als sr:srp sv:swe sw:swh ta:tam th:tha tr:tur uk:ukr ur:urd vi:vie zh:cmn"
)
_THREE_LETTERS = dict(pair.split(":") for pair in _CODES.split())
_SCRIPTS = {
    "ARABIC": "Arab",
    "ARMENIAN": "Armn",
    "BENGALI": "Beng",
    "CJK": "Hani",
    "CYRILLIC": "Cyrl",
    "DEVANAGARI": "Deva",
    "ETHIOPIC": "Ethi",
    "GEORGIAN": "Geor",
    "GREEK": "Grek",
    "HANGUL": "Kore",
    "HEBREW": "Hebr",
    "HIRAGANA": "Jpan",
    "KATAKANA": "Jpan",
    "LATIN": "Latn",
    "TAMIL": "Taml",
    "THAI": "Thai",
}


def declared_language(lang: str, text: str) -> str:
    """The tag for a page that declares `lang` (an HTML lang attribute) over `text`.

    Edge   a two-letter code this table lacks, or a script it lacks, gives "und": no guess.
    """
    match = _TAG.match(lang.strip())
    if match is None:
        return UNDETERMINED
    code = match[1].lower()
    three = _THREE_LETTERS.get(code) if len(code) == 2 else code
    script = _script(text)
    return f"{three}_{script}" if three and script else UNDETERMINED


def _script(text: str) -> str:
    counts: dict[str, int] = {}
    for letter in [c for c in text[: 4 * _SAMPLE_LETTERS] if c.isalpha()][:_SAMPLE_LETTERS]:
        script = _SCRIPTS.get(unicodedata.name(letter, "").split(" ")[0].split("-")[0], "")
        counts[script] = counts.get(script, 0) + 1
    if not counts:
        return ""
    # Japanese mixes kana with characters shared with Chinese; any kana decides.
    if counts.get("Jpan", 0) * 20 > sum(counts.values()):
        return "Jpan"
    return max(sorted(counts), key=lambda script: counts[script])
