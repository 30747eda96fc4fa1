"""Text from HTML: the main content of a page, under bounds on what a page may cost.

What a page says, its title included, is data: it is never run, never trusted and leaves here as
plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import DOMNode, HTMLTree, NodeType

from stamm.corpus.config import ReadLimits
from stamm.corpus.licences.markup import Mark, licence_marks

_META_TAGS = 100
_META_LETTERS = 1000


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page holds.

    text    main content, one paragraph per line
    lang    the language the page declares, unchecked ("" when none)
    metas   name in lower case and content of its first 100 meta elements that have both
    marks   where its markup names a licence
    """

    text: str
    lang: str
    metas: tuple[tuple[str, str], ...]
    marks: tuple[Mark, ...] = ()


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


def extract(body: bytes, charset: str | None, limits: ReadLimits) -> Page:
    """The main text of a page, its declared language, its meta elements and its licence marks.

    Raises   CostlyPageError beyond limits.html_tags or limits.html_depth. Extraction takes a time
             that grows with the square of the depth (measured with resiliparse 2.0.1: 0.9 s at
             10,000 levels, over a minute at 100,000).
    """
    html = decode(body, charset)
    tags = html.count("<")
    if tags > limits.html_tags:
        raise CostlyPageError("html_too_large", f"{tags} tags, limit {limits.html_tags}")
    tree = HTMLTree.parse(html)
    # A tree is no deeper than it has tags, give or take html, head and body.
    if tags + 3 > limits.html_depth and _deeper_than(tree, limits.html_depth):
        raise CostlyPageError("html_too_deep", f"over {limits.html_depth} levels of elements")
    text = extract_plain_text(tree, main_content=True, alt_texts=False)
    root = tree.document.query_selector("html") if tree.document is not None else None
    lang = (root.get_attribute("lang") or "") if root is not None else ""
    return Page(
        text=text.strip(), lang=lang[:35], metas=_metas(tree), marks=licence_marks(html, tree)
    )


def _metas(tree: HTMLTree) -> tuple[tuple[str, str], ...]:
    if tree.head is None:
        return ()
    found = []
    for element in tree.head.query_selector_all("meta[name][content]")[:_META_TAGS]:
        name = (element.get_attribute("name") or "")[:_META_LETTERS]
        found.append((name.lower(), (element.get_attribute("content") or "")[:_META_LETTERS]))
    return tuple(found)


def _deeper_than(tree: HTMLTree, limit: int) -> bool:
    """Whether elements are nested beyond `limit`. Texts and comments are stepped over."""
    node: DOMNode | None = tree.document
    depth = 0
    while node is not None:
        child = node.first_child
        if child is not None and child.type != NodeType.ELEMENT:
            child = child.next_element
        if child is not None:
            node, depth = child, depth + 1
            if depth > limit:
                return True
            continue
        while node is not None and node.next_element is None:
            node, depth = node.parent, depth - 1
        node = node.next_element if node is not None else None
    return False
