"""Text from HTML: the main content of a page, under bounds on what a page may cost.

The content of a page, its title included, is untrusted data: it is never executed and becomes plain
text.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

from stamm.base.units import bytes_text
from stamm.corpus.licences.markup import LicenceMark, licence_marks
from stamm.corpus.limits import ReadLimits
from stamm.corpus.sandbox import apart

_META_TAGS = 100
_META_LETTERS = 1000
# Extraction takes some 0.3 microseconds for each element and level above it.
_MOST_LEVELS = 20_000_000
# Bounds for a page that may be costly. Normal ones are far below: 200,000 tags take 5 s.
_CPU_S = 30
_MEMORY_BYTES = 2**30
# Below these no page was found that takes over 5 s; `_is_cheap` has the superlinear costs.
_FEW_TAGS = 1000
_MOST_ELEMENTS = 1_000_000
_MOST_OPTIONS = 10_000
_MOST_ATTRIBUTES = 40_000
_NAMES = "b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u"
_OPENED = re.compile(rf"<(?:{_NAMES})[\s/>]", re.IGNORECASE)
# Strict, so that the end of the tag is unambiguous; only text before its end tag.
_CLOSED_AT_ONCE = re.compile(
    rf'<({_NAMES})(?:\s+[a-z][a-z0-9:._-]*(?:="[^"<>]*")?)*\s*>[^<>]*</\1\s*>', re.IGNORECASE
)
_OPTION = re.compile(r"<option[\s/>]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ExtractedPage:
    """Text and metadata of a page.

    text    main content, one paragraph per line
    lang    the language the page declares, unchecked ("" when none)
    metas   name in lower case and content of its first 100 meta elements that have both
    marks   licences named in its markup
    """

    text: str
    lang: str
    metas: tuple[tuple[str, str], ...]
    marks: tuple[LicenceMark, ...] = ()


class CostlyPageError(Exception):
    """A page that would cost too much: a ledger reason and its detail."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


def decode(body: bytes, charset: str | None) -> str:
    """A response body as text: in the declared encoding, else UTF-8 if it is that, else as detected.

    Edge   a label that names no encoding counts as none; bytes that are wrong in the encoding
           become U+FFFD; a byte order mark is taken off.
    """
    encoding = map_encoding_to_html5(charset[:100], fallback_utf8=False) if charset else None
    if encoding is None:
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError:
            encoding = detect_encoding(body, from_html_meta=True) or "utf-8"
    return bytes_to_str(body, encoding, errors="replace", fallback_encodings=())


def extract(body: bytes, charset: str | None, limits: ReadLimits) -> ExtractedPage:
    """The main text of a page, its declared language, its meta elements and its licence marks.

    Raises   CostlyPageError beyond limits.html_tags, beyond limits.html_depth (less where a page of
             over 20,000 tags would take too long), and for a page that takes 30 s of processor
             time or 1 GiB.
    Checked  tests/unit/corpus/test_costly_pages.py
    """
    html = decode(body, charset)
    tags = html.count("<")
    if tags > limits.html_tags:
        raise CostlyPageError("html_too_large", f"{tags} tags, limit {limits.html_tags}")
    if _is_cheap(html, tags):
        return _page(html, tags, limits)
    result = apart(lambda: _as_json(html, tags, limits), cpu_s=_CPU_S, memory_bytes=_MEMORY_BYTES)
    if result is None:
        raise CostlyPageError(
            "html_too_large", f"over {_CPU_S} s of processor time or {bytes_text(_MEMORY_BYTES)}"
        )
    return _from_json(result)


def _is_cheap(html: str, tags: int) -> bool:
    """Whether the time a page takes is bounded, however it was made (resiliparse 2.0.1).

    Three costs grow with the square of the size: each block element reopens formatting elements that
    an earlier one left open; each attribute is compared with all others of its element; and each
    option of a list with the options before it.
    """
    if len(html) > 2 * _MOST_ATTRIBUTES:
        # Two attributes are separated by a blank, a slash or the quote that ends a value.
        quotes = html.count('"') + html.count("'")
        if len(html.split()) + html.count("/") + quotes // 2 > _MOST_ATTRIBUTES:
            return False
    if tags > _MOST_OPTIONS and _count(_OPTION, html) > _MOST_OPTIONS:
        return False
    if tags <= _FEW_TAGS:
        return True
    left_open = 1 + _count(_OPENED, html)  # of links only one
    if tags * (1 + left_open) > _MOST_ELEMENTS:
        left_open -= _count(_CLOSED_AT_ONCE, html)
    return tags * (1 + left_open) <= _MOST_ELEMENTS


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _page(html: str, tags: int, limits: ReadLimits) -> ExtractedPage:
    tree = HTMLTree.parse(html)
    deepest = min(limits.html_depth, max(1, _MOST_LEVELS // max(1, tags)))
    # A cell also opens table body and row: a tree may be twice as deep as its number of tags.
    if 2 * tags + 3 > deepest and _deeper_than(tree, deepest):
        raise CostlyPageError("html_too_deep", f"over {deepest} levels of elements in {tags} tags")
    text = extract_plain_text(tree, main_content=True, alt_texts=False)
    root = tree.document.first_element_child if tree.document is not None else None
    lang = (root.get_attribute("lang") or "") if root is not None else ""
    return ExtractedPage(
        text=text.strip(), lang=lang[:35], metas=_metas(tree), marks=licence_marks(html, tree)
    )


def _as_json(html: str, tags: int, limits: ReadLimits) -> bytes:
    try:
        result = {"page": asdict(_page(html, tags, limits))}
    except CostlyPageError as error:
        result = {"costly": {"reason": error.reason, "detail": error.detail}}
    return json.dumps(result).encode()


def _from_json(result: bytes) -> ExtractedPage:
    plain = json.loads(result)
    if "costly" in plain:
        raise CostlyPageError(**plain["costly"])
    page = plain["page"]
    return ExtractedPage(
        text=page["text"],
        lang=page["lang"],
        metas=tuple((name, content) for name, content in page["metas"]),
        marks=tuple(LicenceMark(**mark) for mark in page["marks"]),
    )


def _metas(tree: HTMLTree) -> tuple[tuple[str, str], ...]:
    if tree.head is None:
        return ()
    found: list[tuple[str, str]] = []
    for element in tree.head.get_elements_by_tag_name("meta"):
        if element.hasattr("name") and element.hasattr("content"):
            name = (element.get_attribute("name") or "")[:_META_LETTERS]
            found.append((name.lower(), (element.get_attribute("content") or "")[:_META_LETTERS]))
            if len(found) == _META_TAGS:
                break
    return tuple(found)


def _deeper_than(tree: HTMLTree, limit: int) -> bool:
    """Whether elements are nested beyond `limit`.

    Asked as a selector, which the parser's library answers some 50 times faster than a walk here.
    """
    chain = ">".join("*" * (limit + 1))
    return tree.document is not None and tree.document.query_selector(chain) is not None
