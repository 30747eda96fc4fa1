"""Text out of HTML: encodings, bounds, and pages as plain data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_inputs import page, warc_response

from stamm.base.console import NoProgress
from stamm.corpus.charset import decode
from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.extract import UnusablePageError, extract, letters_lost
from stamm.corpus.language.codes import declared_language
from stamm.corpus.limits import ReadLimits
from stamm.corpus.tables import read_parts
from tests.unit.small_corpus import build_corpus

LIMITS = ReadLimits()


def _refuse(*_: object, **__: object) -> str:
    raise AssertionError("text was extracted")


def test_main_text_and_metas() -> None:
    found = extract(page("Hello there.", '<meta name="Robots" content="noai">'), None, LIMITS)
    assert found.text == "Hello there."
    assert found.metas == (("robots", "noai"),)
    assert found.lang == "en"


def test_script_in_a_title_or_heading_stays_text() -> None:
    html = (
        b"<title>&lt;script&gt;</title><h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1><p>Text.</p>"
    )
    assert "<script>alert(1)</script>" in extract(html, None, LIMITS).text
    assert "alert" not in extract(b"<body><script>alert(1)</script><p>Text.</p>", None, LIMITS).text


def test_nesting_is_bounded_before_text_is_extracted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stamm.corpus.extract.extract_plain_text", _refuse)
    with pytest.raises(UnusablePageError, match="html_too_large: 200001 tags"):
        extract(b"<p>" * 200_001, None, LIMITS)
    with pytest.raises(UnusablePageError, match="html_too_deep: over 105 levels"):
        extract(b"<div>" * 100_000 + b"x" + b"</div>" * 90_000, None, LIMITS)
    monkeypatch.undo()
    assert extract(b"<div>" * 200 + b"deep text", None, LIMITS).text == "deep text"
    # Many elements side by side are no depth.
    shallow = ReadLimits(html_depth=20)
    assert extract(b"<p>word</p>" * 20_000, None, shallow).text.count("word") == 20_000


STRUCTURES = {
    "list near body": (
        "<ul><li>two hundred grams of flour</li><li>three eggs</li></ul>",
        "  • two hundred grams of flour\n  • three eggs",
    ),
    "nested lists": (
        "<ol><li>one</li><li>two<ul><li>inner</li></ul></li></ol>",
        "  1. one\n  2. two\n    • inner",
    ),
    "table": (
        "<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>",
        "A\t\tB\n1\t\t2",
    ),
    "headings": ("<h2>Second</h2><p>Text.</p><h3>Third</h3>", "Second\n\nText.\n\nThird"),
    "code": (
        "<pre><code>def f(x):\n    if x:\n\n        return 1</code></pre>",
        "def f(x):\n    if x:\n\n        return 1",
    ),
    "code in a figure": (
        "<figure class='highlight'><pre>a &lt; b\n  c</pre></figure>",
        "a < b\n  c",
    ),
    "table in a figure": (
        "<figure><table><tr><td>cell</td></tr></table><figcaption>drawn by</figcaption></figure>",
        "cell",
    ),
    "picture": ("<figure><img alt='a cat'><figcaption>Cat</figcaption></figure>", ""),
    "ruby": ("<p><ruby>新<rp>(</rp><rt>あたら</rt><rp>)</rp></ruby>しい橋</p>", "新しい橋"),
    "definition list": ("<dl><dt>Term</dt><dd>Meaning</dd></dl>", "Term\nMeaning"),
    "quotation": ("<blockquote><p>Quoted.</p></blockquote>", "Quoted."),
    "line breaks": ("<p>one<br>two</p>", "one\ntwo"),
    "inline elements": (
        "<p>On <time datetime=2020>5 May</time> by <a rel=author class=author>Ann</a>, see "
        "<a rel=tag>this</a> and <span class=email>that</span> for <b>2</b>–<b>3</b> €.</p>",
        "On 5 May by Ann, see this and that for 2–3 €.",
    ),
    "hidden": (
        "<p>Price <span style='color: red; display :none'>SECRET</span>42 euros <b hidden>no</b> and "
        "<i aria-hidden=true>no</i><i style='visibility:hidden'>no</i> <b class=x>more</b></p>",
        "Price 42 euros and more",
    ),
    "end of a tag in a value": (
        """<p>See <a title="x > y" href="/q">this</a> and <a onclick='if(a>b)"<p>"'>that</a>.</p>""",
        "See this and that.",
    ),
    "inline elements first": (
        "<p><time>1898</time> was the year.</p><p><span class=author>Marie Curie</span> found it.</p>"
        "<p><label>Note:</label> read.</p>",
        "1898 was the year.\n\nMarie Curie found it.\n\nNote: read.",
    ),
    "names in cells": (
        "<table><tr><td class=author>Ann</td><td><span class=rating>5</span></td><td>Book</td></table>",
        "Ann\t\t5\t\tBook",
    ),
    "names in code": (
        "<pre><span class=hljs-comment># why</span>\nx = <span class=share>1</span></pre>",
        "# why\nx = 1",
    ),
    "powers and fractions": (
        "<p>10<sup>-3</sup>, 2<sup class=x>8</sup>, 1<sup>st</sup>, m<sup>2</sup>, "
        "<math><mfrac><mn>1</mn><mrow><mi>x</mi><mo>+</mo><mn>2</mn></mrow></mfrac></math></p>",
        "10^-3, 2^8, 1st, m2, 1/(x+2)",
    ),
    "button in a sentence": ("<p>Press <button>OK</button> to go.</p>", "Press OK to go."),
    "icons": ("<p>Read<i>\ue001</i><a href=#a>¶</a> this</p>", "Read this"),
}


@pytest.mark.parametrize("around", ["body", "main", "article", "div"])
@pytest.mark.parametrize(("html", "text"), STRUCTURES.values(), ids=STRUCTURES.keys())
def test_structure_is_kept(html: str, text: str, around: str) -> None:
    before, after = "This paragraph comes first.", "And this one is the last."
    body = f"<{around}><p>{before}</p>{html}<p>{after}</p></{around}>"
    found = extract(body.encode(), None, LIMITS).text
    assert found.startswith(before) and found.endswith(after)
    assert found[len(before) : -len(after)].strip("\n") == text


def test_boilerplate_and_comments_are_left_out() -> None:
    html = (
        "<header><p>Our site</p></header><nav><ul><li><a href=/>Home</a></ul></nav>"
        "<article><h1>Title</h1><p>The text of the article is here.</p>"
        "<div class='related-posts'><p>Related text.</p></div></article>"
        "<div id='comments'><p>A comment by a reader.</p></div><footer><p>Imprint</p></footer>"
    )
    assert extract(html.encode(), None, LIMITS).text == "Title\n\nThe text of the article is here."


NAMES_OF_CONTENT = (
    *("biology", "antibiotics", "prevention", "preview", "operating-systems", "migrating-birds"),
    *("narrating", "commentary", "respondent", "subscript", "metadata", "promotion-law"),
)


@pytest.mark.parametrize("element", ["section", "div"])
def test_content_whose_name_contains_or_begins_with_that_of_boilerplate_is_kept(
    element: str,
) -> None:
    named = [f"{key}={name}" for name in NAMES_OF_CONTENT for key in ("class", "id")]
    named += ["id=related-work", "id=copyright-law"]
    html = "".join(f"<{element} {name}><p>This is on {name}.</p></{element}>" for name in named)
    text = extract(f"<main>{html}</main>".encode(), None, LIMITS).text
    assert [name for name in named if f"on {name}." not in text] == []


def test_most_of_the_text_is_never_boilerplate() -> None:
    html = f"<p>{LINE}</p><div class=modal><p>{OTHER}. {LINE * 9}</p></div>"
    assert OTHER in extract(html.encode(), None, LIMITS).text


@pytest.mark.parametrize(
    "html",
    [
        "<div class='modal'><p>All of the text.</p></div>",
        "<div hidden><p>All of the text.</p></div>",
        "<noscript><p>All of the text.</p></noscript>",
        "<footer><p>All of the text.</p></footer>",
    ],
)
def test_a_page_of_which_the_rules_leave_nothing_is_read_without_them(html: str) -> None:
    assert extract(html.encode(), None, LIMITS).text == "All of the text."


def test_markup_is_read_as_it_was_written() -> None:
    head = '<meta name="a" content="x>京<y"><script type="application/ld+json">{"license": "é"}</script>'
    text = "Text under <a rel='license' href='https://creativecommons.org/licenses/by/4.0/'>BY</a>."
    found = extract(page(text, head), None, LIMITS)
    assert found.metas == (("a", "x>京<y"),)
    assert [mark.value for mark in found.marks] == [
        "https://creativecommons.org/licenses/by/4.0/",
        '{"license": "é"}',
    ]
    assert found.text == "Text under BY."


LINE = "a line of more than twenty letters"
OTHER = "another line that is as long as it"


@pytest.mark.parametrize(
    ("plain", "text", "share"),
    [
        ("", "", 0),
        (LINE, "", 1),
        (LINE, LINE, 0),
        (LINE, LINE.replace("m", ""), 1),
        (f"{LINE}\nshort", LINE, 0),
        (f"{LINE}\n{LINE}{OTHER}", LINE, 55 / 83),
        (f"• {LINE}\n  12. {OTHER}", f"12. {LINE}\n    • {OTHER}", 0),
    ],
)
def test_letters_lost(plain: str, text: str, share: float) -> None:
    assert letters_lost(plain, text) == pytest.approx(share)


def test_pages_that_lose_much_of_their_text_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such pages are kept; the count is in the manifest, the ledger, the summary and one line."""
    bodies = [f"<p>{LINE} {word}</p>" for word in ("one", "two")]
    bodies[1] += f"<div class=modal><p>{OTHER}. {LINE * 9}</p></div>" * 2
    records = [
        warc_response(f"https://a.example/{n}", body.encode()) for n, body in enumerate(bodies)
    ]
    archive = tmp_path / "pages.warc"
    archive.write_bytes(b"".join(records))
    config = CorpusConfig(
        inputs=(str(archive),), consent=ConsentConfig(unknown_host="allow"), held_out=0.0
    )
    told: list[str] = []
    monkeypatch.setattr(NoProgress, "log", lambda _, text: told.append(text))
    folder = build_corpus(config, tmp_path)
    assert told == [
        "1 of 2 web pages lost over 80% of the letters of their longer lines in extraction: column "
        "letters_lost of the ledger"
    ]
    rows = sorted(read_parts(folder, "ledger"), key=lambda row: str(row["url"]))
    assert [row["decision"] for row in rows] == ["kept", "kept"]
    assert rows[0]["letters_lost"] == 0 and rows[1]["letters_lost"] > 0.8
    manifest = json.loads((tmp_path / "filtered" / "manifests" / "00000.json").read_text())
    assert (manifest["facts"]["pages"], manifest["facts"]["lossy_pages"]) == (2, 1)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["letters_lost"]["pages"] == 2
    assert summary["letters_lost"]["p99"] == rows[1]["letters_lost"]


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode(), "utf-8", "é"),
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("é".encode(), "no-such-encoding", "é"),
        (b"\xef\xbb\xbfa", None, "a"),
        ("\ufeffcafé".encode(), "iso-8859-1", "café"),
        ("\ufeffcafé".encode("utf-16-le"), "utf-8", "café"),
        ("\ufeffcafé".encode("utf-16-be"), None, "café"),
        (b"\x93hi\x94", "windows-1252", "“hi”"),
        (
            "привет мир, это русский текст".encode("windows-1251"),
            "windows-1251",
            "привет мир, это русский текст",
        ),
        (b"a\xffb", "utf-8", "a\ufffdb"),
        (b"", None, ""),
    ],
)
def test_decode(body: bytes, charset: str | None, text: str) -> None:
    assert decode(body, charset) == text


@pytest.mark.parametrize(
    "body", [b"", b"\x00\x01\x02", b"<", b"<html", b"<p>\xff\xfe", b"<!doctype x"]
)
def test_odd_bodies_give_text_and_no_error(body: bytes) -> None:
    assert isinstance(extract(body, None, LIMITS).text, str)


def test_metas_are_bounded() -> None:
    head = "".join(f'<meta name="n{i}" content="{"c" * 5000}">' for i in range(500))
    metas = extract(page("x", head), None, LIMITS).metas
    assert len(metas) == 100
    assert max(len(content) for _, content in metas) == 1000


@pytest.mark.parametrize(
    ("lang", "text", "tag"),
    [
        ("de", "Guten Tag", "deu_Latn"),
        ("de-CH", "Guten Tag", "deu_Latn"),
        ("eng", "Good day", "eng_Latn"),
        ("ru", "Добрый день", "rus_Cyrl"),
        ("ja", "こんにちは日本語", "jpn_Jpan"),
        ("zh-Hant", "你好世界", "cmn_Hani"),
        ("", "Good day", "und"),
        ("xx", "Good day", "und"),
        ("en", "12345", "und"),
        ("english", "Good day", "und"),
        ("<script>", "Good day", "und"),
    ],
)
def test_declared_language(lang: str, text: str, tag: str) -> None:
    assert declared_language(lang, text) == tag
