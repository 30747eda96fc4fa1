r"""The number that a worked answer ends with, for the reward `Number` and the rule `match: number`.

    marked   the last "#### 72", or \boxed{72}, comes before all other numbers
    digits   of any script; grouped by commas, dots, apostrophes or blanks
    decimals after a dot, or after a comma where "1.234,50", "0,5", "1,05" or a unit ("5,50 €")
             makes it unambiguous; "12,15" is a list
    sign     -, U+2212 or "negative", unless a number or a word is in front: "10-15" ends with 15
    others   1e6, 3 × 10^5, 10³, 1/2, 1½, \frac{1}{2}, 3 million, 1.5k

Times, ratios, versions and formulas ("18:00", "3 : 2", "1.2.3", "√2", "5±1", "f(2)") are not understood:
None, never a part of them.

Checked  tests/unit/evaluate/test_answer_number.py
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

LONGEST_TEXT = 1_000_000
_MOST_DIGITS = 1000
_MARKED = 2 * _MOST_DIGITS  # characters that are read after a mark
_FORMULA = "\ufffd"  # stands for a part of a formula without a value
_BLANKS = " \u00a0\u2009\u202f"
_SIGNS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
_LETTERS = {
    0xFF0C: ",",
    0xFF0E: ".",
    0x066B: ".",
    0x066C: ",",
    0x2019: "'",
    0x2044: "/",
    0xFF0F: "/",
}
_MARK = re.compile(r"(?<!#)####(?!#)|\\f?boxed\s*(?=\{)")
_HEADING = re.compile(r"\s*\d+[.)]\s+[^\W\d]")  # "#### 3. Total", of Markdown
_COMMAND = re.compile(r"\\([A-Za-z]+|[,;:! %$])\s*")
_UNWRAPPED = frozenset(
    {"text", "textbf", "mathrm", "mathbf", "mbox", "boxed", "fbox", "displaystyle"}
)
_FRACTIONS = frozenset({"frac", "dfrac", "tfrac", "cfrac"})
_PLAIN = {
    "times": "×", "cdot": "×", ",": " ", ";": " ", ":": " ", " ": " ", "!": "", "%": "%", "$": "$",
    "pm": "±", "left": "", "right": "", "circ": "°", "degree": "°", "quad": " ", "qquad": " ",
}  # fmt: skip
_VALUELESS = frozenset(
    {"sqrt", "pi", "log", "ln", "exp", "sin", "cos", "tan", "binom", "infty", "theta"}
)
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹]+")
_SYMBOL = re.compile(r"[√∛∜∞]|(?<![^\W\d_])π(?![^\W\d_])")
_MAGNITUDES = {
    "hundred": 2, "thousand": 3, "Tausend": 3, "k": 3, "lakh": 5, "lakhs": 5, "million": 6, "millions": 6,
    "Millionen": 6, "millones": 6, "Mio": 6, "crore": 7, "crores": 7, "billion": 9, "milliard": 9,
    "milliards": 9, "Milliarden": 9, "Mrd": 9, "bn": 9, "trillion": 12, "万": 4, "萬": 4, "億": 8, "亿": 8,
}  # fmt: skip
_MAGNITUDE = re.compile(
    rf"[{_BLANKS}]*(?:({'|'.join(sorted(_MAGNITUDES, key=len, reverse=True))})(?![a-zA-Z])|([KMB])(?!\w))"
)
_CURRENCIES = "$€£¥₹"
_UNIT = re.compile(
    rf"[{_BLANKS}]?(?:[%{_CURRENCIES}°]|(?:EUR|Euros?|euros?|[kcm]?m|[km]?g|ml|l|h)(?!\w))"
)
_TOKEN = re.compile(
    rf"""(?P<run>\d+(?:[.,'_]\d+|[{_BLANKS}]\d{{3}}(?!\d))*+|(?<![\w.])\.\d+)
    (?:[eE](?P<exponent>[+-]?\d+)(?![^\W_]*[\d_]))?
    (?:\ ?[×x*·⋅∙]\ ?10\ ?(?:\^|\*\*)\ ?[{{(]?(?P<power>[+-]?\d+)[}})]?
      |(?:\^|\*\*)[{{(]?(?P<raised>[+-]?\d+)[}})]?)?
    (?P<over>\ ?/\ ?(?P<divisor>-?\d+))?
    (?P<more>(?:[:/^]\d|\.\d|\ +:\ +\d|\*\*\d|\^\{{?\ ?[+-]?(?!(?:st|nd|rd|th)\b)\w|_\{{|[ ]*±|\s*{_FORMULA})
      .*?(?=\s|$))?
    | {_FORMULA}\S*""",
    re.VERBOSE,
)


def answer_number(text: str) -> Fraction | None:
    """The number that an answer ends with; None without one, and where it is not understood.

    Edge   of a longer text the last million characters are read
    """
    text = _normalized(text[-LONGEST_TEXT:])
    for mark in reversed(list(_MARK.finditer(text))):
        if mark[0] == "####":
            line = text[mark.end() : mark.end() + _MARKED].lstrip("\\ \t\n*$€£¥{(")
            line = line.partition("\n")[0].partition("####")[0]
            line = re.sub(r"^- +", "-", _without_latex(line))
            numbers = [] if _HEADING.match(line) else _numbers(line)
            if numbers and not line[: numbers[0][1]].strip("-+$€£¥ "):
                return numbers[0][0]
            continue
        content = text[mark.end() + 1 : _closed(text, mark.end()) - 1]
        if content.strip():
            return _boxed(_without_latex(content))
    text = _without_latex(text)
    last = max(map(text.rfind, (*"0123456789", _FORMULA)))
    numbers = _numbers(text[max(last - _MARKED, 0) : last + _MARKED])
    return numbers[-1][0] if numbers else None


def _boxed(content: str) -> Fraction | None:
    """The one number of a box; "72 clips in 2 months" begins with it."""
    side = re.split(r"[=≈]", content)[-1].strip()
    if re.search(r"\d ?!", side):
        return None
    numbers = _numbers(re.sub(r"^- +", "-", side))
    worded = len(numbers) > 1 and re.match(r" ?[^\W\d]{2,}", side[numbers[0][2] :])
    return numbers[0][0] if len(numbers) == 1 or worded else None


def _normalized(text: str) -> str:
    """Digits of all scripts as ASCII, and one character for each sign and separator."""
    letters: dict[int, str] = {**_SIGNS, **_LETTERS, ord(_FORMULA): "?"}
    exponents = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(exponents), text)
    for letter in set(text):
        digit = unicodedata.decimal(letter, None)
        if digit is not None:
            letters[ord(letter)] = str(digit)
        elif unicodedata.decomposition(letter).startswith("<fraction>"):
            plain = unicodedata.normalize("NFKC", letter).replace("\u2044", "/")
            text = re.sub(rf"(?<=\d){letter}", f" {plain}", text)
            letters[ord(letter)] = plain
    return _SYMBOL.sub(_FORMULA, text.translate(letters))


def _without_latex(text: str) -> str:
    """The text without the commands of LaTeX: fractions as 1/2, others as what they show."""
    text = text.replace("{,}", ",")
    if "\\" not in text:
        return text
    parts, position = [], 0
    while (command := _COMMAND.search(text, position)) is not None:
        name, before = command[1], text[position : command.start()]
        parts.append(before)
        position = command.end()
        if name in _FRACTIONS:
            above, position = _argument(text, position)
            below, position = _argument(text, position)
            plain = re.fullmatch(r"-?\d+", above) and re.fullmatch(r"\d+", below)
            mixed = " " if before[-1:].isdigit() else ""
            parts.append(f"{mixed}{above}/{below}" if plain else _FORMULA)
        elif name in _VALUELESS:
            while text[position : position + 1] == "{":
                position = _closed(text, position)
            parts.append(_FORMULA)
        elif name in _UNWRAPPED and text[position : position + 1] == "{":
            end = _closed(text, position)
            parts.append(f" {text[position + 1 : end - 1]} ")
            position = end
        else:
            parts.append(_PLAIN.get(name, " "))
    return re.sub(r"\^\s*\{?°\}?", "°", "".join((*parts, text[position:])))


def _argument(text: str, position: int) -> tuple[str, int]:
    """An argument of a command, in braces or one character, and where it ends."""
    if text[position : position + 1] != "{":
        return text[position : position + 1], position + 1
    end = _closed(text, position)
    return text[position + 1 : end - 1].strip(), end


def _closed(text: str, position: int) -> int:
    """The index after the brace that closes the one at `position`; without one, len(text) + 1."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text) + 1


def _numbers(text: str) -> list[tuple[Fraction | None, int, int]]:
    """The numbers of a text with their places; None for what is not understood."""
    numbers: list[tuple[Fraction | None, int, int]] = []
    scaled = -1  # where the last number with a magnitude ends
    for token in _TOKEN.finditer(text):
        begin, end = token.span()
        if _is_mark(text, token):
            continue
        values = list(_values(token, is_decimal=_has_unit(text, begin, end)))
        values[0] = _signed(text, begin, end, values[0])
        if _IN_FORMULA.search(text[max(begin - 8, 0) : begin]):
            values = [None]
        before, value = numbers[-1] if numbers else None, values[-1]
        between = text[before[2] : begin] if before else "none"
        if before and token["over"] and between in (" ", "  ", "-") and value is not None:
            whole = before[0]
            if whole is not None and whole.denominator == 1 and 0 < abs(value) < 1:
                doubt = between == "-" and not re.match(r" [^\W\d]{2,}", text[end : end + 4])
                mixed = whole + (-abs(value) if whole < 0 else abs(value))
                begin, values = before[1], [None if doubt else mixed]
                del numbers[-1]
        magnitude = _MAGNITUDE.match(text, end)
        if scaled >= 0 and text[scaled:begin] in ("", " ", " and "):
            values[-1] = None
        if magnitude is not None and values[-1] is not None and token["run"]:
            end = scaled = magnitude.end()
            if magnitude[1]:
                values[-1] *= 10 ** _MAGNITUDES[magnitude[1]]
            else:  # kelvin, mol, byte, or thousand, million, billion
                values[-1] = None
        numbers += [(number, begin, end) for number in values]
    return numbers


_IN_FORMULA = re.compile(
    r"± ?$|\) ?\^ ?\{? ?[+-]?$|(?:(?<![^\W\d_])[A-Za-z]|\b(?:sin|cos|tan|log|ln|exp|sqrt))\( ?-?$"
)
_MARKS = re.compile(
    r"(?<!\))\^ ?\{? ?[+-]?$|(?:[^\W_]|[)}\]])_\{?$|(?:[.!?][\"']? ?|[^\W_]|\] ?)\[$"
)


def _is_mark(text: str, token: re.Match[str]) -> bool:
    """Whether the token is an exponent or an index of something else, the exponent of a unit, or a citation."""
    begin, end = token.span()
    before = text[max(begin - 6, 0) : begin]
    mark = _MARKS.search(before)
    if mark is not None:
        return not mark[0].endswith("[") or text[end : end + 1] == "]"
    unit = r"(?:(?:^|[\s\d/])(?:[kcdmµ]?m|ft|yd|mi)|/ ?(?:s|h|min|sec)|m s-)$"
    return token[0] in ("2", "3") and re.search(unit, before) is not None


def _has_unit(text: str, begin: int, end: int) -> bool:
    """Whether the number has a unit, so that a comma in it is not that of a list."""
    unit = _UNIT.match(text, end) or _MAGNITUDE.match(text, end)
    return unit is not None or text[begin - 1 : begin] in tuple(_CURRENCIES)


def _signed(text: str, begin: int, end: int, value: Fraction | None) -> Fraction | None:
    """The value with the sign in front of it, where it is not that of a subtraction or a range."""
    before = text[max(begin - 16, 0) : begin].rstrip(_CURRENCIES)
    if value is None:
        return value
    if re.search(r"\bnegative $|(?:[=≈:]|\bis|^) ?minus $|(?:[=≈(]|\bis) ?- +$", before):
        return -value
    if before.endswith("(") and text[end : end + 1] == ")":
        before = before[:-1].rstrip(" ")
    if not before.endswith("-"):
        return value
    before = before[:-1]
    if re.search(r"\d ?-$", before):
        return -value
    return value if re.search(r"[\w)\]}}%'\-]$|[\d)\]}}] +$", before) else -value


def _values(token: re.Match[str], *, is_decimal: bool) -> Iterator[Fraction | None]:
    """The numbers that a token is read as: one, or those of a list.

    is_decimal   whether a comma is that of a decimal number
    """
    run, ten = token["run"], token["power"]
    exponent = token["exponent"]
    if run is None or token["more"]:
        yield None
        return
    if token["raised"]:
        run, ten = ("1", token["raised"]) if run == "10" else ("", None)
    if is_decimal and re.fullmatch(r"\d+,\d{1,2}", run):
        run = run.replace(",", ".")
    *first, last = _read(run)
    yield from first
    for part in (exponent, ten):
        if part is not None and last is not None:
            last = last * Fraction(10) ** int(part) if len(part) < 4 else None
    if token["divisor"] and last is not None:
        divisor = token["divisor"]
        last = last / int(divisor) if len(divisor) <= _MOST_DIGITS and int(divisor) else None
    yield last


def _read(run: str) -> list[Fraction | None]:
    """The numbers of digits with separators between them."""
    if len(run) > _MOST_DIGITS or not run:
        return [None]
    for blank in _BLANKS:
        run = run.replace(blank, " ")
    separators = re.sub(r"\d", "", run)
    if separators in ("", "."):
        return [Fraction(run)]
    decimal = (
        separators[-1] if separators[-1] in ".," and separators.count(separators[-1]) == 1 else ""
    )
    whole, _, rest = run.rpartition(decimal) if decimal and len(separators) > 1 else (run, "", "")
    if len(set(re.sub(r"\d", "", whole))) == 1 and _is_grouped(whole):
        return [Fraction(re.sub(r"\D", "", whole) + (f".{rest}" if rest else ""))]
    if re.fullmatch(r"0,\d+|\d+,0\d+", run):
        return [Fraction(run.replace(",", "."))]
    if re.fullmatch(r"\d+,0", run):
        return [None]
    for separator in ", ":
        if separator in run:
            return [number for part in run.split(separator) for number in _read(part)]
    return [None]


def _is_grouped(run: str) -> bool:
    """Whether the separators of a run are between groups of thousands, or of lakh and crore."""
    return re.fullmatch(r"[1-9]\d{0,2}(?:\D\d{3})+|[1-9]\d?(?:,\d{2})+,\d{3}", run) is not None
