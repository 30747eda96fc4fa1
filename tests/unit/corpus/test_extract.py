"""Text out of HTML: encodings, bounds, and pages as plain data."""

from __future__ import annotations

import pytest
from corpus_inputs import page

from stamm.corpus.extract import CostlyPageError, decode, extract
from stamm.corpus.language.declared import declared_language
from stamm.corpus.limits import ReadLimits

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
    with pytest.raises(CostlyPageError, match="html_too_large: 200001 tags"):
        extract(b"<p>" * 200_001, None, LIMITS)
    with pytest.raises(CostlyPageError, match="html_too_deep: over 105 levels"):
        extract(b"<div>" * 100_000 + b"x" + b"</div>" * 90_000, None, LIMITS)
    monkeypatch.undo()
    assert extract(b"<div>" * 200 + b"deep text", None, LIMITS).text == "deep text"
    # Many elements side by side are no depth.
    shallow = ReadLimits(html_depth=20)
    assert extract(b"<p>word</p>" * 20_000, None, shallow).text.count("word") == 20_000


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode(), "utf-8", "é"),
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("é".encode(), "no-such-encoding", "é"),
        (b"\xef\xbb\xbfa", None, "a"),
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
