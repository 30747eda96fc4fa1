"""What CLD2 says about a text: the one door to pycld2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pycld2

from stamm.corpus.language.codes import cld2_code

# What CLD2 may answer, as ISO 639-3.
KNOWN: Final = frozenset(
    code
    for name, short in pycld2.LANGUAGES
    if name in pycld2.DETECTED_LANGUAGES and (code := cld2_code(short))
)


@dataclass(frozen=True, slots=True)
class Cld2Guess:
    """CLD2's first answer.

    code    ISO 639-3, or "" when it gives none
    share   of the text that it says is in that language, from 0 to 1
    sure    whether CLD2 calls its answer reliable
    """

    code: str
    share: float
    sure: bool


def cld2_guess(letters: str) -> Cld2Guess:
    """CLD2's answer for words as `letters.plain_letters` gives them.

    Edge   no declared language, encoding or host is handed over: only the letters count.
    """
    sure, _, answers = pycld2.detect(letters, isPlainText=True, bestEffort=True)
    _, short, percent, _ = answers[0]
    code = cld2_code(short)
    return Cld2Guess(code=code, share=percent / 100 if code else 0.0, sure=bool(sure and code))
