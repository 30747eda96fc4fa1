"""Language identification by CLD2 (pycld2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pycld2

from stamm.corpus.language.codes import cld2_code

# The languages that CLD2 detects, as ISO 639-3.
KNOWN: Final = frozenset(
    code
    for name, short in pycld2.LANGUAGES
    if name in pycld2.DETECTED_LANGUAGES and (code := cld2_code(short))
)


@dataclass(frozen=True, slots=True)
class Cld2Guess:
    """CLD2's first answer.

    code    ISO 639-3, or "" without an answer
    share   share of the text in that language, from 0 to 1
    sure    CLD2's flag for a reliable answer
    """

    code: str
    share: float
    sure: bool


def cld2_guess(letters: str) -> Cld2Guess:
    """CLD2's answer for words from `text_sample.plain_letters`.

    Edge   no hints (declared language, encoding, host) are given: only the letters count.
    """
    sure, _, answers = pycld2.detect(letters, isPlainText=True, bestEffort=True)
    _, short, percent, _ = answers[0]
    code = cld2_code(short)
    return Cld2Guess(code=code, share=percent / 100 if code else 0.0, sure=bool(sure and code))
