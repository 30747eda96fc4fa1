"""The script of a text, by the names that Unicode gives its letters (ISO 15924 codes)."""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

# The first word of a letter's Unicode name, where the code is not the start of that word.
_NAMES = (
    "ADLAM:Adlm ARABIC:Arab ARMENIAN:Armn BALINESE:Bali BAMUM:Bamu BATAK:Batk BENGALI:Beng "
    "BOPOMOFO:Bopo BUGINESE:Bugi CANADIAN:Cans CHAKMA:Cakm CHAM:Cham CHEROKEE:Cher CJK:Hani "
    "COPTIC:Copt CYRILLIC:Cyrl DEVANAGARI:Deva ETHIOPIC:Ethi FULLWIDTH:Latn GEORGIAN:Geor "
    "GLAGOLITIC:Glag GOTHIC:Goth GREEK:Grek GUJARATI:Gujr GURMUKHI:Guru HALFWIDTH:Jpan "
    "HANGUL:Kore HANIFI:Rohg HEBREW:Hebr HENTAIGANA:Jpan HIRAGANA:Jpan JAVANESE:Java "
    "KANNADA:Knda KATAKANA:Jpan KAYAH:Kali KHMER:Khmr LAO:Laoo LATIN:Latn LEPCHA:Lepc "
    "LIMBU:Limb LISU:Lisu MALAYALAM:Mlym MEETEI:Mtei MENDE:Mend MONGOLIAN:Mong MRO:Mroo "
    "MYANMAR:Mymr NEWA:Newa NKO:Nkoo OL:Olck ORIYA:Orya OSAGE:Osge PAHAWH:Hmng RUNIC:Runr "
    "SAURASHTRA:Saur SINHALA:Sinh SUNDANESE:Sund SYLOTI:Sylo SYRIAC:Syrc TAGALOG:Tglg "
    "TAMIL:Taml TELUGU:Telu THAANA:Thaa THAI:Thai TIBETAN:Tibt TIFINAGH:Tfng VAI:Vaii "
    "WANCHO:Wcho WARANG:Wara YI:Yiii"
)
_SCRIPTS = dict(pair.split(":") for pair in _NAMES.split())
# Japanese and Korean also use Han characters; this share of kana or Hangul is enough.
_MIXED_WITH_HAN = ("Jpan", "Kore")
_OWN_SHARE = 0.05


@functools.lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The script of one letter; "" for other characters, and for scripts not listed here.

    Checked  tests/unit/corpus/language/test_scripts.py
    """
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
