"""Checks of instructions that a program can verify, by the ids of IFEval and its translations.

A check is a pure function of the answer's text and the instruction's arguments. The prompts of the
data define what is checked; what they leave open is defined here or at the check.

    words       runs of letters, marks and digits; in scripts without blanks each letter is a word
    sentences   end with . ! ? … 。 ！ ？ before a blank or the end, or with an empty line;
                abbreviations count as ends
    paragraphs  separated by *** or, for nth_paragraph_first_word, by empty lines

Source   Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv
         2311.07911; prompts and arguments of shisa-ai/M-IFEval (en, es, fr, ja) and rlrs/ifeval-da
Checked  tests/unit/align/test_instructions.py
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stamm.base.errors import DataError
from stamm.corpus.language.codes import UNDETERMINED, script_of, to_iso639_3
from stamm.corpus.quality.word_split import WITHOUT_BLANKS, split_words
from stamm.evaluate.instruction_arguments import InstructionArguments

Check = Callable[[str, InstructionArguments], bool]

_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s|$)|[。！？]+[」』）]*|\n\s*\n")
_EMPTY_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_DIVIDER, _TWO_DIVIDER = re.compile(r"\*{3}"), re.compile(r"\*{6}")
_BULLET = re.compile(r"^[^\S\n]*(?:[*\-+•][^\S\n]+|・)\S", re.MULTILINE)
_NUMBERED = re.compile(r"^[^\S\n]*\d+(?:[.)][^\S\n]+|[．、）])\S", re.MULTILINE)
_BOLD, _EMPHASIS = re.compile(r"\*\*(?=\S)[^*\n]+\*\*"), re.compile(r"\*(?=\S)[^*\n]*[^\s*]\*")
_JAPANESE_EMPHASIS = re.compile(r"《[^《》\n]+》")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLES = {
    "": re.compile(r"<<[^\S\n]*+[^<>\s][^<>\n]*>>"),
    "fr": re.compile(r"##[^\S\n]*+[^#\s][^#\n]*##"),
    "ja": re.compile(r"『[^『』\n]+』"),
}
_OPTIONS = {
    "en": ("My answer is yes.", "My answer is no.", "My answer is maybe."),
    "es": ("Sí.", "No.", "Quizás."),
    "fr": ("Oui.", "Non.", "Peut-être."),
    "ja": ("はい、そうです。", "いいえ、違います。", "どちらとも言えません。"),
}
_QUOTES = (('"', '"'), ("“", "”"), ("„", "“"), ("»", "«"), ("«", "»"), ("「", "」"), ("”", "”"))
_FENCE = re.compile(r"\s*+```(?:json)?[^\S\n]*+\n(.*)```\s*", re.DOTALL | re.IGNORECASE)
_HAN = r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff々〆]"
_KANJI = re.compile(_HAN)
_HIRAGANA, _KATAKANA = re.compile(r"[\u3041-\u309f]"), re.compile(r"[\u30a1-\u30fa\u30fc-\u30ff]")
_FURIGANA = re.compile(rf"(?<!{_HAN}){_HAN}++（[\u3041-\u309fー]+）")
_TU = re.compile(r"\b(?:tu|te|toi)\b|\bt['’]", re.IGNORECASE)
_VOUS = re.compile(r"\b(?:vous|votre|vos)\b", re.IGNORECASE)
_ACCENTS = frozenset("\u0300\u0301\u0302\u0308")  # grave, acute, circumflex, diaeresis
_ENGLISH, _SPANISH, _FRENCH = "eng", "spa", "fra"


def parse_json(text: str, *, fence: bool = True) -> Any:
    """The JSON value that a text consists of, with `fence` also in a Markdown code block.

    Raises   ValueError for another text, and for NaN and Infinity, which JSON has not (RFC 8259)
    """
    fenced = _FENCE.fullmatch(text) if fence else None
    return json.loads(fenced.group(1) if fenced else text, parse_constant=_reject_constant)


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def words_of(text: str) -> list[str]:
    """The words of a text, as written."""
    return split_words(text, set(text))


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, without their ends."""
    return [part.strip() for part in _SENTENCE_END.split(text) if re.search(r"\w", part)]


def _contains(text: str, keyword: str) -> bool:
    return keyword.casefold() in text.casefold()


def _holds_word(text: str, word: str) -> bool:
    """Whether `word` occurs as a word of its own; in scripts without blanks, whether it occurs."""
    if any(script_of(letter) in WITHOUT_BLANKS for letter in word):
        return word in text
    pattern = rf"(?<!\w){re.escape(word.casefold())}(?!\w)"
    return re.search(pattern, text.casefold()) is not None


def _count(text: str, part: str) -> int:
    return text.casefold().count(part.casefold())


def _words_with(text: str, letters: str) -> int:
    return sum(not set(letters).isdisjoint(word.casefold()) for word in words_of(text))


def _only(text: str, allowed: re.Pattern[str]) -> bool:
    letters = [c for c in text if unicodedata.category(c)[0] == "L"]
    return bool(letters) and all(allowed.match(c) or c == "ー" for c in letters)


def _divided(text: str, divider: re.Pattern[str]) -> list[str] | None:
    """Parts between dividers; None when one between two dividers is empty."""
    parts = [part.strip() for part in divider.split(text)]
    parts = parts[not parts[0] : len(parts) - (not parts[-1])]
    return parts if all(parts) else None


def _paragraphs(text: str, given: InstructionArguments) -> bool:
    parts = _divided(text, _DIVIDER)
    return parts is not None and len(parts) == given.number("num_paragraphs")


def _first_word(text: str, given: InstructionArguments) -> bool:
    paragraphs = [part for part in _EMPTY_LINES.split(text.strip()) if part.strip()]
    number, wanted = given.number("nth_paragraph"), given.text("first_word").casefold()
    if len(paragraphs) != given.number("num_paragraphs") or not 1 <= number <= len(paragraphs):
        return False
    begin = re.sub(r"^[\W_]+", "", paragraphs[number - 1]).casefold()
    after = begin[len(wanted) : len(wanted) + 1]
    joined = script_of(wanted[-1]) not in WITHOUT_BLANKS and re.match(r"\w", after) is not None
    return begin.startswith(wanted) and not joined


def _two_responses(text: str, given: InstructionArguments) -> bool:
    parts = _divided(text, _TWO_DIVIDER)
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def _postscript(text: str, given: InstructionArguments) -> bool:
    marker = given.text("postscript_marker").casefold()
    lines = (re.sub(r"^[\s*_#>]+", "", line).casefold() for line in text.splitlines())
    return any(line.startswith(marker) for line in lines)


def _highlights(text: str, given: InstructionArguments) -> bool:
    bold = len(_BOLD.findall(text))
    plain = len(_EMPHASIS.findall(_BOLD.sub(" ", text)))
    japanese = len(_JAPANESE_EMPHASIS.findall(text)) if given.language == "ja" else 0
    return given.holds(bold + plain + japanese, "num_highlights")


def _sections(text: str, given: InstructionArguments) -> bool:
    splitter = re.escape(given.text("section_spliter"))
    number = r"[\d一二三四五六七八九十]+" if given.language == "ja" else r"\d+"
    pattern = (
        rf"第\s*{number}\s*{splitter}" if given.language == "ja" else rf"{splitter}\s*{number}"
    )
    return given.holds(len(re.findall(pattern, text)), "num_sections")


def _one_of(text: str, options: Sequence[str]) -> bool:
    return sum(option in text for option in options) == 1


def _constrained(text: str, given: InstructionArguments) -> bool:
    if given.language not in _OPTIONS:
        raise DataError(f"{given.name}: the options in language {given.language!r} are not known")
    return _one_of(text, _OPTIONS[given.language])


def _json(text: str, given: InstructionArguments) -> bool:
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, given: InstructionArguments) -> bool:
    return _TITLES.get(given.language, _TITLES[""]).search(text) is not None


def _quoted(text: str, given: InstructionArguments) -> bool:
    inner = text.strip()
    return any(
        len(inner) > 2 and inner.startswith(begin) and inner.endswith(end) for begin, end in _QUOTES
    )


def _ends(text: str, given: InstructionArguments) -> bool:
    end = given.text("end_phrase").strip().casefold()
    return text.strip().strip("\"'”’»*").strip().casefold().endswith(end.strip("\"'"))


def _repeats(text: str, given: InstructionArguments) -> bool:
    return text.strip().casefold().startswith(given.text("prompt_to_repeat").strip().casefold())


def _in_language(text: str, given: InstructionArguments) -> bool:
    wanted = to_iso639_3(given.text("language"))
    if not wanted:
        raise DataError(f"{given.name}: unknown language {given.values['language']!r}")
    return given.identify(text).partition("_")[0] == wanted


def _cased(upper: bool, language: str = "") -> Check:
    """All letters with case are capital or lower-case, in a language if one is named.

    Edge   a text too short to identify has no wrong language
    """

    def check(text: str, given: InstructionArguments) -> bool:
        if not (text.isupper() if upper else text.islower()):
            return False
        identified = given.identify(text.lower()).partition("_")[0] if language else ""
        return identified in (language, UNDETERMINED)

    return check


def _capital_words(text: str, given: InstructionArguments) -> bool:
    count = sum(word.isupper() for word in words_of(text))
    return given.holds(count, "capital_frequency", "capital_relation")


def _accents_restored(text: str, given: InstructionArguments) -> bool:
    return all(
        _holds_word(text, accented) and not _holds_word(text, plain)
        for plain, accented in given.pairs("word_to_accentuate").items()
    )


def _unified_end(text: str, given: InstructionArguments) -> bool:
    sentences = sentences_of(text)
    return bool(sentences) and all(
        sentence.endswith(given.text("ending")) for sentence in sentences
    )


def _letters(text: str, given: InstructionArguments) -> bool:
    return given.holds(len(re.sub(r"\s", "", text)), "num_letters")


CHECKS: Mapping[str, Check] = {
    "change_case:capital_letters": _cased(upper=True),
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _cased(upper=True, language=_ENGLISH),
    "change_case:english_lowercase": _cased(upper=False, language=_ENGLISH),
    "change_case:french_capital": _cased(upper=True, language=_FRENCH),
    "change_case:french_lowercase": _cased(upper=False, language=_FRENCH),
    "change_case:lowercase_letters": _cased(upper=False),
    "change_case:spanish_capital": _cased(upper=True, language=_SPANISH),
    "change_case:spanish_lowercase": _cased(upper=False, language=_SPANISH),
    "combination:repeat_prompt": _repeats,
    "combination:two_responses": _two_responses,
    "detectable_content:informal_address": lambda t, g: bool(_TU.search(t)) and not _VOUS.search(t),
    "detectable_content:no_digits": lambda t, g: not any(c in "0123456789" for c in t),
    "detectable_content:number_placeholders": lambda t, g: g.holds(
        len(_PLACEHOLDER.findall(t)), "num_placeholders"
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:constrained_response_with_argument": lambda t, g: _one_of(
        t, g.texts("options")
    ),
    "detectable_format:json_format": _json,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:number_bullet_lists": lambda t, g: (
        len(_BULLET.findall(t)) == g.number("num_bullets")
    ),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:number_numbered_lists": lambda t, g: (
        len(_NUMBERED.findall(t)) == g.number("num_items")
    ),
    "detectable_format:title": _title,
    "keywords:existence": lambda t, g: all(_contains(t, word) for word in g.texts("keywords")),
    "keywords:forbidden_words": lambda t, g: (
        not any(_holds_word(t, word) for word in g.texts("forbidden_words"))
    ),
    "keywords:frequency": lambda t, g: g.holds(_count(t, g.text("keyword")), "frequency"),
    "keywords:letter_frequency": lambda t, g: g.holds(
        _count(t, g.text("letter")), "let_frequency", "let_relation"
    ),
    "language:response_language": _in_language,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "length_constraints:number_letters": _letters,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_sentences": lambda t, g: g.holds(
        len(sentences_of(t)), "num_sentences"
    ),
    "length_constraints:number_words": lambda t, g: g.holds(len(words_of(t)), "num_words"),
    "letters:furigana": lambda t, g: not _KANJI.search(_FURIGANA.sub("", t)),
    "letters:hiragana_only": lambda t, g: _only(t, _HIRAGANA),
    "letters:kanji": lambda t, g: g.holds(len(_KANJI.findall(t)), "kanji_limit"),
    "letters:kansuuji": lambda t, g: not re.search(r"[0-9０-９]", t),
    "letters:katakana_only": lambda t, g: _only(t, _KATAKANA),
    "letters:no_hiragana": lambda t, g: not _HIRAGANA.search(t),
    "letters:no_katakana": lambda t, g: not _KATAKANA.search(t),
    "punctuation:exclamation_marks": lambda t, g: "!" in t,
    "punctuation:no_comma": lambda t, g: not re.search("[,，、،]", t),
    "punctuation:no_period": lambda t, g: "。" not in t,
    "punctuation:question_marks": lambda t, g: "?" in t,
    "special_character:accents": _accents_restored,
    "special_character:dieresis": lambda t, g: _words_with(t, "ü") == g.number("let_frequency"),
    "special_character:enie": lambda t, g: _words_with(t, "ñ") == g.number("let_frequency"),
    "special_character:ethel_or_cedilla": lambda t, g: not _contains(t, g.text("forbidden_char")),
    "special_character:no_accents": lambda t, g: _ACCENTS.isdisjoint(
        unicodedata.normalize("NFD", t)
    ),
    "special_character:tildes": lambda t, g: g.holds(_words_with(t, "áéíóú"), "num_words"),
    "startend:end_checker": _ends,
    "startend:quotation": _quoted,
    "startend:sentence_unified_end": _unified_end,
}
"""Check of each instruction id, without its prefix of a language.

Not here: ja:detectable_format:nominal_ending, which needs a part-of-speech tagger.
"""
