"""A page in each of 58 scripts: every letter comes out, in order, however the markup splits the text."""

from __future__ import annotations

import unicodedata

import pytest

from stamm.corpus import extract as extraction
from stamm.corpus.extract import extract
from stamm.corpus.limits import ReadLimits

# Ranges of letters (Unicode 15.0), at most 200 of each script, from these code points on.
SCRIPTS = {
    "Latin": 0xC0, "Greek": 0x391, "Cyrillic": 0x410, "Armenian": 0x531, "Hebrew": 0x5D0,
    "Arabic": 0x620, "Syriac": 0x712, "Thaana": 0x780, "Nko": 0x7CA, "Samaritan": 0x800,
    "Mandaic": 0x840, "Devanagari": 0x904, "Bengali": 0x985, "Gurmukhi": 0xA05, "Gujarati": 0xA85,
    "Oriya": 0xB05, "Tamil": 0xB85, "Telugu": 0xC05, "Kannada": 0xC85, "Malayalam": 0xD05,
    "Sinhala": 0xD85, "Thai": 0xE01, "Lao": 0xE81, "Tibetan": 0xF40, "Myanmar": 0x1000,
    "Georgian": 0x10D0, "Hangul": 0xAC00, "Ethiopic": 0x1200, "Cherokee": 0x13A0,
    "Canadian": 0x1401, "Ogham": 0x1681, "Runic": 0x16A0, "Tagalog": 0x1700, "Khmer": 0x1780,
    "Mongolian": 0x1820, "Limbu": 0x1900, "Tai": 0x1950, "Buginese": 0x1A00, "Balinese": 0x1B05,
    "Sundanese": 0x1B83, "Batak": 0x1BC0, "Lepcha": 0x1C00, "Ol": 0x1C5A, "Glagolitic": 0x2C00,
    "Tifinagh": 0x2D30, "Hiragana": 0x3041, "Katakana": 0x30A1, "Bopomofo": 0x3105, "CJK": 0x4E00,
    "Yi": 0xA000, "Lisu": 0xA4D0, "Vai": 0xA500, "Bamum": 0xA6A0, "Saurashtra": 0xA882,
    "Javanese": 0xA984, "Cham": 0xAA00, "Gothic": 0x10330, "Adlam": 0x1E900,
}  # fmt: skip
MARKS = "–—“”…€、。·’"
INLINE = ("b", "i", 'a href="/x"', 'span class="share"', "em", "code", "ruby", "mark")
PER_PARAGRAPH = 16


def letters_of(script: str) -> list[str]:
    start = SCRIPTS[script]
    block = (chr(point) for point in range(start, start + 400))
    named = [c for c in block if unicodedata.name(c, "").startswith(script.upper())]
    return [c for c in named if unicodedata.category(c) in ("Lo", "Lu", "Ll")][:200]


def page_of(letters: list[str]) -> tuple[str, list[str]]:
    """A page, and its lines: each letter stands alone in an element, and in a word."""
    lines = ["".join(letters[:12])]
    blocks = [f"<h1>{lines[0]}</h1>"]
    for start in range(0, len(letters), PER_PARAGRAPH):
        some = letters[start : start + PER_PARAGRAPH]
        html = text = "".join(some[::-1])
        for index, letter in enumerate(some):
            mark, element = MARKS[index % len(MARKS)], INLINE[index % len(INLINE)]
            spelled = letter if index % 3 else f"&#x{ord(letter):x};"
            html += f"<{element}>{spelled}</{element.split()[0]}>{mark}"
            text += letter + mark
        blocks.append(f"<p>{html}</p>")
        lines.append(text)
    word = "".join(letters[:7])
    items = [letters[0], word, f"<a href='/'>{letters[1]}</a>{word}"]
    blocks.append(f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>")
    lines += [f"• {letters[0]}", f"• {word}", f"• {letters[1]}{word}"]
    blocks.append(f"<table><tr><td>{letters[2]}</td><td>{word}</td></tr></table>")
    lines.append(f"{letters[2]}\t\t{word}")
    blocks.append(f"<p>{letters[3]}</p><div>{letters[4]}<br>{letters[5]}</div>")
    lines += letters[3:6]
    return f"<html><body><main>{''.join(blocks)}</main></body></html>", lines


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_page_in_each_script_keeps_every_letter(script: str) -> None:
    letters = letters_of(script)
    assert len(letters) >= 17
    html, lines = page_of(letters)
    page = extract(html.encode(), None, ReadLimits())
    assert [line.strip() for line in page.text.split("\n") if line.strip()] == lines
    assert page.letters_lost == 0


@pytest.mark.parametrize("script", ["CJK", "Thai", "Hangul", "Devanagari"])
def test_letters_that_the_main_content_rules_delete_are_measured(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    html, _ = page_of(letters_of(script))
    monkeypatch.setattr(extraction, "protected", lambda page: page)
    assert extract(html.encode(), None, ReadLimits()).letters_lost > 0.9
