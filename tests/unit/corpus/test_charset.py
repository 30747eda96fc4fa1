"""Encodings of pages: declared rightly, wrongly, differently in header and page, or not at all."""

from __future__ import annotations

import random

import pytest

from stamm.corpus.charset import UndecodableError, decode
from stamm.corpus.extract import UnusablePageError, extract
from stamm.corpus.limits import ReadLimits

TEXTS = {
    "shift_jis": "これは日本語のページです。漢字とかなが混ざっています。①",
    "euc-jp": "これは日本語のページです。漢字とかなが混ざっています。",
    "iso-2022-jp": "これは日本語のページです。漢字とかなが混ざっています。",
    "gb18030": "这是一个中文网页，内容很简单，但是足够长，可以用来检测编码。",
    "gb2312": "这是一个中文网页，内容很简单，但是足够长，可以用来检测编码。",
    "big5": "這是一個繁體中文的網頁，內容很簡單，但是足夠長，可以用來偵測編碼。",
    "euc-kr": "이것은 한국어 웹페이지입니다. 내용은 간단하지만 충분히 깁니다. 똠",
    "koi8-r": "Это русская страница. Текст простой, но достаточно длинный.",
    "windows-1251": "Это русская страница. Текст простой, но достаточно длинный.",
    "windows-1253": "Αυτή είναι μια ελληνική σελίδα με αρκετό κείμενο.",
    "windows-1255": "זה דף בעברית עם מספיק טקסט כדי לזהות את הקידוד",
    "windows-1256": "هذه صفحة عربية. النص بسيط ولكنه طويل بما يكفي لاكتشاف الترميز.",
    "windows-874": "นี่คือหน้าเว็บภาษาไทยที่มีข้อความยาวพอสมควร",
}
CODECS = {"shift_jis": "cp932", "euc-kr": "cp949", "windows-874": "cp874"}
RUSSIAN = TEXTS["koi8-r"]


def page_in(label: str, head: str = "") -> bytes:
    html = f"<html><head>{head}<title>x</title></head><body><p>{TEXTS[label]}</p></body></html>"
    return html.encode(CODECS.get(label, label))


@pytest.mark.parametrize("label", TEXTS)
@pytest.mark.parametrize(
    ("header", "meta"),
    [
        ("{}", ""),
        (None, "<meta charset='{}'>"),
        (None, '<meta http-equiv=Content-Type content="text/html; charset={}">'),
        (None, ""),
        ("utf-8", "<meta charset={}>"),
        ("utf-8", ""),
        ("iso-8859-1", "<meta charset={}>"),
        ("iso-8859-1", ""),
    ],
)
def test_a_page_is_read_in_its_encoding_whatever_is_declared(
    label: str, header: str | None, meta: str
) -> None:
    charset = header.format(label) if header else None
    assert TEXTS[label] in decode(page_in(label, meta.format(label)), charset)


@pytest.mark.parametrize("charset", [None, "iso-8859-1", "gbk", "shift_jis", "windows-1251"])
@pytest.mark.parametrize("meta", ["", "<meta charset=iso-8859-1>", "<meta charset=utf-16>"])
def test_utf8_is_read_as_utf8(charset: str | None, meta: str) -> None:
    html = f"{meta}<p>{RUSSIAN} “quoted” é</p>"
    assert decode(html.encode(), charset) == html


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("charset", [None, "utf-8", "iso-8859-1"])
def test_utf16_without_a_byte_order_mark(encoding: str, charset: str | None) -> None:
    html = f"<html><body><p>{RUSSIAN}</p></body></html>"
    assert decode(html.encode(encoding), charset) == html


def test_few_letters_and_single_errors_do_not_change_the_declared_encoding() -> None:
    assert decode("联通".encode("gbk"), "gbk") == "联通"  # valid UTF-8, too
    assert decode(f"{RUSSIAN}\xff".encode() + b"\xff", "utf-8") == f"{RUSSIAN}\xff\ufffd"
    mixed = f"<p>{RUSSIAN} “a” “b”".encode() + "é à ù".encode("latin-1")
    assert decode(mixed, "utf-8").startswith(f"<p>{RUSSIAN} “a” “b”\ufffd")
    french = "Où ça ? À la carte, naïve — déjà vu, “très” bien."
    assert decode(french.encode("cp1252"), "iso-8859-1") == french
    assert decode(french.encode("cp1252"), "utf-8") == french


def test_what_is_in_no_encoding_is_a_reason_of_the_ledger() -> None:
    noise = random.Random(0).randbytes(2000).replace(b"<", b"")
    with pytest.raises(UndecodableError, match="characters beyond ASCII are wrong in utf-8"):
        decode(noise, "utf-8")
    with pytest.raises(UnusablePageError, match="undecodable"):
        extract(noise, "utf-8", ReadLimits())
