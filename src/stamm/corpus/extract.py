"""Text from HTML: the main content of a page, under bounds on what a page may cost.

The content of a page, its title included, is untrusted data: it is never executed and becomes plain
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from stamm.base.sandbox import apart
from stamm.base.units import bytes_text
from stamm.corpus.charset import UndecodableError, decode
from stamm.corpus.consent.terms import LONGEST_RSL, RSL_TYPE
from stamm.corpus.documents import LONGEST_FIELD
from stamm.corpus.licences.markup import LicenceMark, licence_marks
from stamm.corpus.limits import ReadLimits
from stamm.corpus.page_tree import (
    BOILERPLATE,
    MOST_OF_THE_TEXT,
    lower_lists,
    mark_boilerplate,
    protected,
    without_marks,
    write_out,
)
from stamm.corpus.streams import UnusableError

_META_TAGS = 100
_META_LETTERS = 1000
_MOST_LICENCES = 8
# Extraction takes about 0.3 microseconds for each element and level above it.
_MOST_LEVELS = 20_000_000
# Bounds for a page that may be costly. Normal ones are far below: 200,000 tags take 5 s.
_CPU_S = 30
_MEMORY_BYTES = 2**30
# No page below these bounds was measured to take over 5 s; `_is_cheap` has the superlinear costs.
_FEW_TAGS = 1000
_MOST_ELEMENTS = 1_000_000
_MOST_OPTIONS = 10_000
_MOST_ATTRIBUTES = 40_000
_FORMATTING = "b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u"
# Sets of both cases of each letter, which are many times faster than re.IGNORECASE.
_NAMES = re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", _FORMATTING)
_OPENED = re.compile(rf"<(?:{_NAMES})[\s/>]")
# Strict, so that the end of the tag is unambiguous; only text before its end tag.
_CLOSED_AT_ONCE = re.compile(
    rf'<({_NAMES})(?:\s+[A-Za-z][A-Za-z0-9:._-]*(?:="[^"<>]*")?)*\s*>[^<>]*</(?i:\1)\s*>'
)
_OPTION = re.compile(r"<[oO][pP][tT][iI][oO][nN][\s/>]")

_MEDIA = (
    *("img", "area", "svg", "object", "embed", "video", "audio", "figcaption", "rt", "rp", "rtc"),
    "figure:not(:has(p,pre,table,ul,ol,blockquote))",
)
# The element with the content, if there is just one such and it has most of the text.
_CONTENT_ELEMENTS = ('[itemprop~="articleBody"]', "article")

# The extraction without other rules leaves out these elements only.
_NOT_READ = ("nav", "header", "footer", "aside", "form", "figure", *_MEDIA[:-1])
_LONG_LINE = 20  # letters; shorter lines are often links and labels
_LIST_ITEM = re.compile(r"\s*(?:•|\d+\.)?\s*")


@dataclass(frozen=True, kw_only=True)
class ExtractedPage:
    """Text and metadata of a page.

    text           main content, one paragraph per line
    lang           the language the page declares, unchecked ("" when none)
    metas          name (or http-equiv) in lower case and content of its first 100 meta elements with both
    marks          licences named in its markup
    licences       RSL licences inside the page (its first 8)
    licence_links  addresses of RSL licences that it names
    letters_lost   share of the letters of a reading without rules that `text` lacks (`letters_lost`)
    """

    text: str
    lang: str
    metas: tuple[tuple[str, str], ...]
    marks: tuple[LicenceMark, ...] = ()
    licences: tuple[str, ...] = ()
    licence_links: tuple[str, ...] = ()
    letters_lost: float = 0.0


class UnusablePageError(UnusableError):
    """A page that costs too much, or is not text: a ledger reason and its detail."""


def extract(body: bytes, charset: str | None, limits: ReadLimits) -> ExtractedPage:
    """The main text of a page, its declared language, its meta elements and its licence marks.

    Raises   UnusablePageError for bytes in no known encoding, beyond limits.html_tags, beyond limits.html_depth (less where a page of
             over 20,000 tags would take too long), and for a page that takes 30 s of processor
             time or 1 GiB.
    Checked  tests/unit/corpus/test_costly_pages.py
    """
    try:
        html = decode(body, charset)
    except UndecodableError as error:
        raise UnusablePageError("undecodable", str(error)) from None
    tags = html.count("<")
    if tags > limits.html_tags:
        raise UnusablePageError("html_too_large", f"{tags} tags, limit {limits.html_tags}")
    if _is_cheap(html, tags):
        return _page(html, tags, limits)
    result = apart(lambda: _as_json(html, tags, limits), cpu_s=_CPU_S, memory_bytes=_MEMORY_BYTES)
    if result is None:
        raise UnusablePageError(
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
        around = html.count("/") + (html.count('"') + html.count("'")) // 2
        if len(html.split()) + around > _MOST_ATTRIBUTES:
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
    return len(pattern.findall(text))


def _page(html: str, tags: int, limits: ReadLimits) -> ExtractedPage:
    tree = HTMLTree.parse(protected(html))
    deepest = min(limits.html_depth, max(1, _MOST_LEVELS // max(1, tags)))
    # A cell also opens table body and row: a tree may be twice as deep as its number of tags.
    if 2 * tags + 3 > deepest and _deeper_than(tree, deepest):
        raise UnusablePageError(
            "html_too_deep", f"over {deepest} levels of elements in {tags} tags"
        )
    root = tree.document.first_element_child if tree.document is not None else None
    lang = (root.get_attribute("lang") or "") if root is not None else ""
    metas = _metas(tree)
    marks = tuple(
        replace(mark, value=without_marks(mark.value)) for mark in licence_marks(html, tree)
    )
    licences, links = _rsl(tree) if RSL_TYPE in html else ((), ())
    text, plain = _texts(tree)
    return ExtractedPage(
        text=text,
        lang=lang[:35],
        metas=metas,
        marks=marks,
        licences=licences,
        licence_links=links,
        letters_lost=letters_lost(plain, text),
    )


def _rsl(tree: HTMLTree) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The RSL licences in a page, and the addresses of those that it names."""
    if tree.document is None:
        return (), ()
    scripts = tree.document.query_selector_all(f'script[type="{RSL_TYPE}" i]')[:_MOST_LICENCES]
    links = tree.document.query_selector_all(f'link[type="{RSL_TYPE}" i]')[:_MOST_LICENCES]
    licences = [without_marks(script.text or "")[:LONGEST_RSL] for script in scripts]
    addresses = [(link.get_attribute("href") or "no address")[:LONGEST_FIELD] for link in links]
    return tuple(licences), tuple(addresses)


def _texts(tree: HTMLTree) -> tuple[str, str]:
    """Main content of a page, and all its text but navigation and media; changes the tree.

    A page in which the rules leave nothing is read without them, and last with its noscript.
    """
    if tree.document is None or tree.body is None:
        return "", ""
    write_out(tree.document)
    plain = _text(tree, _NOT_READ, main_content=False)
    mark_boilerplate(tree.document, tree.body)
    lower_lists(tree.document)
    skipped = (*_MEDIA, *BOILERPLATE)
    text = _text(tree, skipped) or plain or _text(tree, _MEDIA, main_content=False, noscript=True)
    for selector in _CONTENT_ELEMENTS:
        elements = tree.body.query_selector_all(selector)
        if len(elements) == 1:
            tree.body.replace_children(elements[0])
            content = _text(tree, skipped)
            return (content if len(content) >= MOST_OF_THE_TEXT * len(text) else text), plain
    return text, plain


def _text(
    tree: HTMLTree, skipped: Iterable[str], main_content: bool = True, noscript: bool = False
) -> str:
    text = extract_plain_text(
        tree,
        main_content=main_content,
        comments=False,
        noscript=noscript,
        skip_elements=list(skipped),
    )
    return without_marks(text).strip()


def letters_lost(plain: str, text: str) -> float:
    """Share of the letters in the long lines of `plain` whose line is not a line of `text`, 0 to 1.

    A line that lost a single character counts whole.
    """
    lines = {_letters(line) for line in text.split("\n") if len(line) >= _LONG_LINE}
    total = lost = 0
    for line in plain.split("\n"):
        letters = _letters(line) if len(line) >= _LONG_LINE else ""
        if len(letters) >= _LONG_LINE:
            total += len(letters)
            lost += 0 if letters in lines else len(letters)
    return lost / total if total else 0.0


def _letters(line: str) -> str:
    return "".join(_LIST_ITEM.sub("", line, count=1).split())


def _as_json(html: str, tags: int, limits: ReadLimits) -> bytes:
    try:
        result = {"page": asdict(_page(html, tags, limits))}
    except UnusablePageError as error:
        result = {"costly": {"reason": error.reason, "detail": error.detail}}
    return json.dumps(result).encode()


def _from_json(result: bytes) -> ExtractedPage:
    plain = json.loads(result)
    if "costly" in plain:
        raise UnusablePageError(**plain["costly"])
    page = plain["page"]
    return ExtractedPage(
        text=page["text"],
        lang=page["lang"],
        metas=tuple((name, content) for name, content in page["metas"]),
        marks=tuple(LicenceMark(**mark) for mark in page["marks"]),
        licences=tuple(page["licences"]),
        licence_links=tuple(page["licence_links"]),
        letters_lost=page["letters_lost"],
    )


def _metas(tree: HTMLTree) -> tuple[tuple[str, str], ...]:
    if tree.head is None:
        return ()
    elements = tree.head.query_selector_all(":is(meta[name],meta[http-equiv])[content]")
    pairs = (
        (
            meta.get_attribute("name") or meta.get_attribute("http-equiv"),
            meta.get_attribute("content"),
        )
        for meta in elements[:_META_TAGS]
    )
    return tuple(
        ((name or "")[:_META_LETTERS].lower(), without_marks(content or "")[:_META_LETTERS])
        for name, content in pairs
    )


def _deeper_than(tree: HTMLTree, limit: int) -> bool:
    """Whether elements are nested beyond `limit`; a selector is 50 times as fast as a walk."""
    chain = ">".join("*" * (limit + 1))
    return tree.document is not None and tree.document.query_selector(chain) is not None
