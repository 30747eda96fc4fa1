"""The language tag of a page that declares one: three-letter code and script (deu_Latn).

A declaration is a claim of the page, not a measurement; an invalid one gives the tag "und".
"""

from __future__ import annotations

import re

from stamm.corpus.language.codes import UNDETERMINED, to_iso639_3
from stamm.corpus.language.scripts import text_script

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
    """The tag for a text of which the input gives the language; "" when it gives none.

    given   "deu_Latn", which is kept, or a code such as "de", "deu" or "de-CH"
    """
    tag = given if _TAG.fullmatch(given) else declared_language(given, text)
    return "" if tag.startswith(UNDETERMINED) else tag
