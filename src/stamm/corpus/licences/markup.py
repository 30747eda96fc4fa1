"""Licence statements in the markup of a page, each of the whole page or of a part.

A statement counts for the page only where nothing suggests another subject. It is of a part inside
a figure, quotation, aside, comment or a list outside the footer, in one of several articles, in an
element that is its own item (itemscope, about, typeof) unless that is the page or its only article,
below a class or id such as image, comment or sidebar, beside a word for such, in an invisible
element (hidden, display: none), in a link of a user (rel="ugc") and in a sentence that denies it.
A licence of a part must never license the page; the reverse error only loses a page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stamm.corpus.licences.names import denies_licence

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

MOST_MARKS = 32
LONGEST_MARK = 500
LONGEST_DATA = 65_536  # characters of one JSON-LD block
_MOST_BLOCKS = 8
_SELECTOR = (
    '[rel~="license"],[rel~="cc:license"],[rel~="dct:license"],[rel~="dcterms:license"],'
    '[rel~="dcterms.license"],[itemprop~="license"],[property~="license"],'
    '[property~="schema:license"],[property~="cc:license"],[property~="dct:license"],'
    '[property~="dcterms:license"],footer a[href*="creativecommons.org/"],'
    '[role="contentinfo"] a[href*="creativecommons.org/"]'
)
_PART_TAGS = (
    "figure figcaption blockquote aside picture video audio object iframe details template noscript"
)
_PARTS = frozenset(_PART_TAGS.split())
# A gallery is a list; the links of a footer are one too, but apply to the page.
_LISTS = ("table", "ul", "ol", "dl")
_NAMED_PART = re.compile(
    r"(?<![a-z])(?:figure|image|img|photo|picture|gallery|caption|thumb|media(?!wiki)|video|audio|"
    r"embed|slide|comment|reply|respon[sd]e|discuss|disqus|thread|forum|"
    r"message|guestbook|user-?content|ugc|review|quote|sidebar|related|widget|card|teaser|"
    r"attribution|credit|icon|ads?\b|promo|product|download)"
)
_OTHER_SUBJECT = re.compile(
    r"photo|foto|image|picture|bild|icon|font|illustration|video|music|musik|musique|drawing|"
    r"zeichnung|dessin|map data|karte|imagen|immagin|theme|template"
)
_LONGEST_SENTENCE = 400
_UNSEEN = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)")
_MAIN_ITEM = re.compile(
    r"(?:WebPage|ItemPage|AboutPage|FAQPage|Article|NewsArticle|BlogPosting|ScholarlyArticle|"
    r"TechArticle|Report|CreativeWork|Book|LearningResource|Document)$"
)
# A search of the tree is slow; most pages with the word license have it in their text.
_ATTRIBUTE = re.compile(r"(?:rel|itemprop|property)\s*=[^<>]*\Z", re.IGNORECASE)
_BEFORE = 100
_MOST_WORDS = 200


@dataclass(frozen=True, kw_only=True)
class LicenceMark:
    """A licence statement in a page: rel, microdata, rdfa, footer or json-ld.

    value   the address or name, at most 500 characters; for json-ld the block, at most 65,536
    whole   whether its place applies to the whole page
    """

    signal: str
    value: str
    whole: bool


def licence_marks(html: str, tree: HTMLTree) -> tuple[LicenceMark, ...]:
    """The first 32 licence statements of a page, and its first 8 JSON-LD blocks with a licence.

    html   the page that `tree` was parsed from; without the word in it no search is done
    """
    word = html.find("icense")
    if tree.document is None or word == -1:
        return ()
    statements = []
    if _is_marked(html, word):
        elements = tree.document.query_selector_all(_SELECTOR)[:MOST_MARKS]
        many_articles = bool(elements) and len(tree.document.query_selector_all("article")) > 1
        marks = [_mark(element, many_articles) for element in elements]
        statements = [mark for mark in marks if mark is not None]
    if "ld+json" in html:
        blocks = tree.document.query_selector_all('script[type="application/ld+json"]')
        for block in blocks[:_MOST_BLOCKS]:
            text = block.text or ""
            if "icense" in text and len(text) <= LONGEST_DATA:
                statements.append(LicenceMark(signal="json-ld", value=text, whole=True))
    return tuple(statements)


def _is_marked(html: str, word: int) -> bool:
    """Whether the word occurs in an attribute of a relation, or so often that it may.

    word   position of its first occurrence
    """
    for _ in range(_MOST_WORDS):
        if word == -1:
            return "creativecommons.org/" in html
        tag = html.rfind("<", max(0, word - _BEFORE), word)
        if tag != -1 and _ATTRIBUTE.search(html, tag + 1, word):
            return True
        word = html.find("icense", word + 1)
    return True


def _mark(element: Any, many_articles: bool) -> LicenceMark | None:
    value = ""
    for name in ("href", "content", "resource"):
        value = value or (element.get_attribute(name) or "").strip()
    if not value and element.tag not in ("link", "meta", "a"):
        value = element.text[:LONGEST_MARK].strip()
    if not value:
        return None
    signal = "footer"
    if element.get_attribute("itemprop"):
        signal = "microdata"
    elif element.get_attribute("property"):
        signal = "rdfa"
    elif element.get_attribute("rel") and "license" in element.get_attribute("rel").lower():
        signal = "rel"
    return LicenceMark(
        signal=signal, value=value[:LONGEST_MARK], whole=not _of_a_part(element, many_articles)
    )


def _of_a_part(element: Any, many_articles: bool) -> bool:
    if element.parent is not None and element.tag == "a":
        sentence = element.parent.text
        short = len(sentence) <= _LONGEST_SENTENCE
        if short and (_OTHER_SUBJECT.search(sentence.lower()) or denies_licence(sentence)):
            return True
        if "ugc" in (element.get_attribute("rel") or "").lower().split():
            return True
    node = element
    listed = False
    while node is not None and node.tag not in ("html", "body", "#document"):
        if _is_part(node, many_articles):
            return True
        listed = listed or node.tag in _LISTS
        if node.tag == "footer" or node.get_attribute("role") == "contentinfo":
            listed = False
        node = node.parent
    return listed


def _is_part(node: Any, many_articles: bool) -> bool:
    if node.tag in _PARTS or (node.tag == "article" and many_articles):
        return True
    if "hidden" in node.attrs or _UNSEEN.search((node.get_attribute("style") or "").lower()):
        return True
    if node.get_attribute("about"):
        return True
    item = node.get_attribute("itemtype") or node.get_attribute("typeof") or ""
    if (item or "itemscope" in node.attrs) and not _MAIN_ITEM.search(item.strip()):
        return True
    named = f"{node.get_attribute('class') or ''} {node.get_attribute('id') or ''}"
    return _NAMED_PART.search(named[:LONGEST_MARK].lower()) is not None
