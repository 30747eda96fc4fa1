"""Language identification by CLD2 and an own fastText model of 360 languages, both recorded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import pycld2

from stamm.base.files import sha256_file
from stamm.corpus.language.codes import CLD2_QUECHUA, QUECHUAN, UNDETERMINED, cld2_code, text_script
from stamm.corpus.language.config import SHIPPED_MODEL, LanguageConfig
from stamm.corpus.language.ngrams import NgramModel
from stamm.corpus.language.text_sample import evenly_spaced_sample, plain_letters

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


# Below this share of its main script a text is mixed.
_MIXED: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageGuess:
    """The identified language, and the answers it is based on.

    language      "deu_Latn", or "und"
    script        of most letters, "" without letters
    own           the own model's first answer, "" when it was not used
    own_score     its probability
    other         CLD2's first answer with the text's script, "" without one
    other_score   share of the text in it according to CLD2; 0 when CLD2 flags it as unreliable
    """

    language: str
    script: str
    own: str
    own_score: float
    other: str
    other_score: float


class LanguageIdentifier:
    """Identifies languages, deterministically. Built once by a worker.

    Raises   DataError when the model is missing or invalid.
    """

    def __init__(self, config: LanguageConfig) -> None:
        self._config = config
        path = _file(config.model)
        self._model = NgramModel(path)
        self.sha256 = sha256_file(path)
        self._scripts: dict[str, set[str]] = {}
        for label in self._model.labels:
            code, _, script = label.partition("_")
            self._scripts.setdefault(code, set()).add(script)

    def identify(self, text: str) -> LanguageGuess:
        """The language of a text, from at most `max_characters` of its characters.

        The rule, in this order:
        1. the own model's answer, if its score is `override_score` or more and CLD2 lacks the language:
           CLD2 would answer a similar one. Also among the Quechuan languages, which are one
           language in CLD2;
        2. CLD2's answer, if CLD2 flags it as reliable;
        3. the own model's answer, if its score is `min_score` or more; else "und".
        An answer in another script than the text's is ignored.

        Edge     "und" for fewer than `min_letters` letters (a third of it in Han and kana,
                 where a letter carries more), and for a text with less than 60 % of its letters in
                 one script; the raw answers are kept.
        Checked  tests/unit/corpus/language/test_identify.py
        """
        letters = plain_letters(evenly_spaced_sample(text, self._config.max_characters))
        script, share = text_script(letters)
        if not script:
            return LanguageGuess(
                language=UNDETERMINED, script="", own="", own_score=0.0, other="", other_score=0.0
            )
        other = cld2_guess(letters)
        own, score = self._model.predict(letters)
        min_letters = self._config.min_letters / (3 if script in ("Hani", "Jpan") else 1)
        readable = len(letters.replace(" ", "")) >= min_letters and share >= _MIXED
        return LanguageGuess(
            language=self._decide(script, own, score, other) if readable else UNDETERMINED,
            script=script,
            own=own,
            own_score=round(score, 4),
            other=f"{other.code}_{script}" if other.code else "",
            other_score=round(other.share if other.sure else 0.0, 4),
        )

    def _decide(self, script: str, own: str, score: float, other: Cld2Guess) -> str:
        own_code, _, own_script = own.partition("_")
        own_fits = own_script == script and score >= self._config.min_score
        if own_fits and own_code not in KNOWN and score >= self._config.override_score:
            return own
        if other.code == CLD2_QUECHUA and own_code.startswith(QUECHUAN):
            return own
        # CLD2's answer is ignored when the own model has its language in other scripts only.
        if other.sure and script in self._scripts.get(other.code, {script}):
            return f"{other.code}_{script}"
        return own if own_fits else UNDETERMINED


def _file(name: str) -> Path:
    if name == SHIPPED_MODEL:
        return Path(str(resources.files("stamm.corpus.language") / "model" / "languages.ftz"))
    return Path(name)
