"""Text from the bytes of a page or a text file, whose declared encoding may be wrong.

A declaration is checked against the bytes: a server often sends one for all of its files, and what
is decoded by a wrong one looks like text to everything that follows.

Source   WHATWG Encoding Standard (names, and the larger sets behind them); HTML, 13.2.3.2 (metas)
Checked  tests/unit/corpus/test_charset.py
"""

from __future__ import annotations

import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# A page without a byte order mark begins with "<" in two bytes.
_WIDE_STARTS = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)\b[^>]{0,400}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]{1,40})",
    re.IGNORECASE,
)
_DECLARED_WITHIN = 4096
# The web uses these names for larger sets.
_LARGER = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "uhc": "cp949",
    "gbk": "gb18030",
    "gb2312": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "iso8859-1": "cp1252",
}
_LATIN = ("cp1252", "iso8859-15")
_OF_LETTERS = re.compile(rb"[\x80-\xff]+")
_LATIN_RUN = 3  # letters beyond ASCII in a row; Latin text rarely has more
_MOST_WRONG = 0.05
_MOST_WRONG_UTF8 = 0.3  # other encodings have few valid sequences of UTF-8
_FEW = 20
_BEYOND_ASCII = bytes(range(128, 256))
_JIS = re.compile(rb"\x1b\$[@B]")


class UndecodableError(Exception):
    """Bytes that are not text in any likely encoding."""


def decode(body: bytes, charset: str | None) -> str:
    """A response body as text: in the encoding of its byte order mark, else UTF-8 if it is that, else
    in the first of the declared ones that fits, else as detected.

    charset   as in the response; a meta element is the second declaration
    Edge      a label that names no encoding counts as none; single bytes that are wrong in the
              encoding become U+FFFD; a byte order mark is taken off. A Latin encoding does not fit
              where most letters beyond ASCII follow each other, as in no Latin script.
    Raises    UndecodableError where over 5 % of the characters beyond ASCII are wrong, in UTF-8 30 %.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, errors="replace")
    for start, encoding in _WIDE_STARTS:
        if body.startswith(start):
            return body.decode(encoding, errors="replace")
    declared = _declared(body, charset)
    if declared and declared[0].startswith("utf-16"):
        return body.decode(declared[0], errors="replace")
    if _JIS.search(body):
        declared.insert(0, "iso2022_jp_ext")
    elif not declared or declared[0] == "utf-8" or not _is_short(body, declared[0]):
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return _fitting(body, declared)


def _declared(body: bytes, charset: str | None) -> list[str]:
    """The encodings that the response and the page declare."""
    match = _DECLARED.search(body[:_DECLARED_WITHIN])
    in_page = _encoding(match[1].decode()) if match else None
    if in_page is not None and in_page.startswith("utf-16"):
        in_page = "utf-8"  # it could not be read in UTF-16
    labels = [_encoding(charset[:100]) if charset else None, in_page]
    return list(dict.fromkeys(label for label in labels if label is not None))


def _encoding(label: str) -> str | None:
    name: str | None = map_encoding_to_html5(label, fallback_utf8=False)
    return _LARGER.get(name, name) if name else None


def _is_short(body: bytes, encoding: str) -> bool:
    """Whether the bytes are in the encoding, and so few that they may be valid UTF-8 by chance."""
    if encoding in _LATIN or len(body) - len(body.translate(None, _BEYOND_ASCII)) >= _FEW:
        return False
    try:
        body.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _fitting(body: bytes, declared: list[str]) -> str:
    least = 1.0
    encodings = list(dict.fromkeys([*declared, "utf-8"]))
    for encoding in (*encodings, ""):
        if encoding in _LATIN and _is_not_latin(body):
            continue
        text = body.decode(encoding or _detected(body), errors="replace")
        letters = len(text) - len(text.encode("ascii", "ignore"))
        wrong_share = max(text.count("\ufffd") - 1, 0) / max(letters, 1)
        if wrong_share <= (_MOST_WRONG_UTF8 if encoding == "utf-8" else _MOST_WRONG):
            return text
        least = min(least, wrong_share)
    raise UndecodableError(
        f"over {int(100 * least)} % of its characters beyond ASCII are wrong in "
        f"{', '.join(encodings)} and {_detected(body)}"
    )


def _detected(body: bytes) -> str:
    name: str = detect_encoding(body, html5_compatible=False) or "utf-8"
    return _LARGER.get(name, name)


def _is_not_latin(body: bytes) -> bool:
    runs = [len(run) for run in _OF_LETTERS.findall(body)]
    long = sum(run for run in runs if run > _LATIN_RUN)
    return sum(runs) >= _FEW and 2 * long > sum(runs)
