"""Text from HTML: the main content of a page, under bounds on what a page may cost.

The content of a page, its title included, is untrusted data: it is never executed and becomes plain
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import unescape

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import TEXT, DocumentNode, ElementNode, HTMLTree

from stamm.base.units import bytes_text
from stamm.corpus.charset import UndecodableError, decode
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

# resiliparse 2.0.1 takes a text node of one character from U+0800 to U+FFFF for an icon and deletes
# it. A noncharacter behind it, which no text contains, prevents that.
_GUARD = "\ufdd0"
_LONE = re.compile(r">\s*(&[#\w]{1,9};?|[\u0800-\udfff\uf900-\uffff])(?=\s*<)")
# It also deletes inline elements by class, rel or name (time) in the middle of a sentence: those
# beside text, and all within code and cells, are left without attributes, unless they are hidden.
_INLINE = (
    *(
        "a",
        "abbr",
        "b",
        "bdi",
        "button",
        "cite",
        "code",
        "data",
        "del",
        "em",
        "font",
        "i",
        "ins",
        "kbd",
    ),
    *(
        "label",
        "mark",
        "q",
        "s",
        "samp",
        "small",
        "span",
        "strong",
        "sub",
        "sup",
        "time",
        "u",
        "var",
    ),
)
_WITHOUT_RULES = ("time", "label", "button")
_EXPONENT = re.compile(r"\s*[-+\u2212\u2013]?\d+\s*")
_VERBATIM = f"td,th,pre,:is(pre,code) *,:is(td,th) > :is({','.join(_INLINE)})"
_HIDDEN_STYLE = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE
)
# And it takes a list fewer than four levels below body for navigation.
_SHALLOW_LISTS = "body > ul, body > * > ul, body > * > * > ul"
_LEVELS_OF_A_LIST = 4
_MOST_SHALLOW_LISTS = 1000

_MEDIA = (
    *("img", "area", "svg", "object", "embed", "video", "audio", "figcaption", "rt", "rp"),
    "figure:not(:has(p,pre,table,ul,ol,blockquote))",
)
_NOT_THE_PAGE = ":not(body,html,main,article,h1,:has(h1,article,main))"
# Words of class names and identifiers. Measured on the development half of the public pages: each
# removes more unwanted than wanted passages (docs/log/2026-11-26-extraction.md).
_BOILERPLATE_STEMS = (
    *("advert", "author", "bio", "breadcrumb", "byline", "categories", "comment", "cookie"),
    *("copyright", "disqus", "entry-meta", "footer", "infobox", "kommentar", "login"),
    *("modal", "more-", "newsletter", "noprint", "pagination", "post-meta", "postmeta", "prev"),
    *("promo", "rating", "recommend", "related", "reply", "respond", "share-", "signup", "subscri"),
)
_BOILERPLATE_WORDS = re.compile(
    r"-(?:advert(?:s|isements?|isings?|orials?)?|authors?|bio|breadcrumbs?|byline|categories"
    r"|comments?|commentlist|cookies?|copyright|disqus|entry-meta|footer|infobox|kommentare?|login|"
    r"modal|more|newsletters?|noprint|pagination|post-?meta|prev(?:ious)?|promos?|ratings?|"
    r"recommend(?:ed|ations?)?|related|reply|respond|share|signup|subscri(?:be|bers?|ptions?))-"
)
_WORD_END = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+")
# Other words in the identifiers of boilerplate.
_TEMPLATE_WORDS = frozenset(
    (
        *("", "area", "article", "articles", "banner", "bar", "block", "blog", "box", "button"),
        *("buttons", "container", "content", "details", "div", "entry", "field", "footer"),
        *("form", "header", "info", "inner", "item", "items", "js", "label", "link", "links"),
        *("list", "main", "menu", "meta", "module", "more", "nav", "news", "next", "notice"),
        *("number", "outer", "page", "pages", "panel", "pod", "popup", "post", "posts"),
        *("section", "sidebar", "site", "social", "story", "stories", "tags", "text", "title"),
        *("top", "topics", "view", "widget", "wrap", "wrapper"),
    )
)
_MOST_LARGE = 20  # elements whose text is compared with the page's
_SKIP = "stamm-boilerplate"  # the attribute that marks them
_BOILERPLATE = (
    f"footer{_NOT_THE_PAGE}",
    f"form{_NOT_THE_PAGE}",
    f"[{_SKIP}]",
)
_CANDIDATES = (
    ":is("
    + ",".join(f'[{key}*="{name}" i]' for name in _BOILERPLATE_STEMS for key in ("class", "id"))
    + f"){_NOT_THE_PAGE}"
)
# The element with the content, if there is just one such and it has most of the text.
_CONTENT_ELEMENTS = ('[itemprop~="articleBody"]', "article")
_MOST_OF_THE_TEXT = 0.7

# The second reading has no rules but these.
_NOT_READ = ("nav", "header", "footer", "aside", "form", "figure", *_MEDIA[:-1])
_LONG_LINE = 20  # letters; shorter lines are often links and labels
_LIST_ITEM = re.compile(r"\s*(?:•|\d+\.)?\s*")


@dataclass(frozen=True, kw_only=True)
class ExtractedPage:
    """Text and metadata of a page.

    text           main content, one paragraph per line
    lang           the language the page declares, unchecked ("" when none)
    metas          name in lower case and content of its first 100 meta elements that have both
    marks          licences named in its markup
    letters_lost   share of the letters of a reading without rules that `text` lacks (`letters_lost`)
    """

    text: str
    lang: str
    metas: tuple[tuple[str, str], ...]
    marks: tuple[LicenceMark, ...] = ()
    letters_lost: float = 0.0


class UnusablePageError(Exception):
    """A page that costs too much, or is no text: a ledger reason and its detail."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


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
    tree = HTMLTree.parse(_protected(html))
    deepest = min(limits.html_depth, max(1, _MOST_LEVELS // max(1, tags)))
    # A cell also opens table body and row: a tree may be twice as deep as its number of tags.
    if 2 * tags + 3 > deepest and _deeper_than(tree, deepest):
        raise UnusablePageError(
            "html_too_deep", f"over {deepest} levels of elements in {tags} tags"
        )
    root = tree.document.first_element_child if tree.document is not None else None
    lang = (root.get_attribute("lang") or "") if root is not None else ""
    metas = _metas(tree)
    marks = licence_marks(html, HTMLTree.parse(html)) if "icense" in html else ()
    text, plain = _texts(tree)
    return ExtractedPage(
        text=text, lang=lang[:35], metas=metas, marks=marks, letters_lost=letters_lost(plain, text)
    )


def _protected(html: str) -> str:
    """The page with a mark behind what resiliparse would take for an icon."""
    return _LONE.sub(_guarded, f">{html}<")[1:-1]


def _unwrap(document: DocumentNode) -> None:
    """Take from the inline elements of a sentence what the rules of resiliparse would delete them by.

    On the tree, since only a parser knows where a tag ends.
    """
    # Of a list: iterating over the nodes of a selector takes the square of their number.
    for element in document.query_selector_all(",".join(_INLINE))[:]:
        plain = element.local_name not in _WITHOUT_RULES and not element.attribute_names
        if not plain and _in_a_sentence(element) and not _is_hidden(element):
            _make_plain(document, element)
    for element in document.query_selector_all(_VERBATIM)[:]:
        if not _is_hidden(element):
            _make_plain(document, element)


def _mark_formulas(document: DocumentNode) -> None:
    """Write powers of numbers and fractions with a mark: 10^-3, 1/2."""
    for power in document.query_selector_all("sup")[:]:
        base = power.previous_sibling
        if (
            base is not None
            and base.node_type == TEXT
            and (base.node_value or "")[-1:].isdigit()
            and power.child_element_count == 0
            and _EXPONENT.fullmatch(power.text or "")
        ):
            power.prepend(document.create_text_node("^"))
    for fraction in document.query_selector_all("mfrac")[:]:
        parts = fraction.children[:]
        if len(parts) == 2:
            for part in parts:
                if part.child_element_count > 1:
                    part.prepend(document.create_text_node("("))
                    part.append(document.create_text_node(")"))
            parts[1].prepend(document.create_text_node("/"))


def _is_hidden(element: ElementNode) -> bool:
    return (
        element.has_attribute("hidden")
        or (element.get_attribute("aria-hidden") or "").lower() == "true"
        or _HIDDEN_STYLE.search(element.get_attribute("style") or "") is not None
    )


def _in_a_sentence(element: ElementNode) -> bool:
    return any(
        node is not None and node.node_type == TEXT and not (node.node_value or " ").isspace()
        for node in (element.previous_sibling, element.next_sibling)
    )


def _make_plain(document: DocumentNode, element: ElementNode) -> None:
    for name in element.attribute_names:
        element.remove_attribute(name)
    if element.local_name in _WITHOUT_RULES:
        plain = document.create_element("span")
        element.replace_with(plain)
        while (child := element.first_child) is not None:
            plain.append_child(child)


def _guarded(node: re.Match[str]) -> str:
    icon = "\ue000" <= unescape(node[1]) <= "\uf8ff"  # of an icon font, in the private use area
    return node[0] if icon else node[0] + _GUARD


def _texts(tree: HTMLTree) -> tuple[str, str]:
    """Main content of a page, and all its text but navigation and media; changes the tree.

    A page in which the rules leave nothing is read without them, and last with its noscript.
    """
    if tree.document is None or tree.body is None:
        return "", ""
    _unwrap(tree.document)
    _mark_formulas(tree.document)
    plain = _text(tree, _NOT_READ, main_content=False)
    _mark_boilerplate(tree.document, tree.body)
    for item_list in tree.document.query_selector_all(_SHALLOW_LISTS)[:_MOST_SHALLOW_LISTS]:
        _lower(tree.document, item_list)
    skipped = (*_MEDIA, *_BOILERPLATE)
    text = _text(tree, skipped) or plain or _text(tree, _MEDIA, main_content=False, noscript=True)
    for selector in _CONTENT_ELEMENTS:
        elements = tree.body.query_selector_all(selector)
        if len(elements) == 1:
            tree.body.replace_children(elements[0])
            content = _text(tree, skipped)
            return (content if len(content) >= _MOST_OF_THE_TEXT * len(text) else text), plain
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
    return text.replace(_GUARD, "").strip()


def _mark_boilerplate(document: DocumentNode, body: ElementNode) -> None:
    """Mark what its class or identifier names as boilerplate, unless it has most of the text.

    An identifier of other words besides is one of the content ("related-work"): it is taken off.
    """
    most = _MOST_OF_THE_TEXT * len(body.text or "")
    large = 0
    for element in document.query_selector_all(_CANDIDATES)[:]:
        words = _words(element.get_attribute("id") or "")
        named = _BOILERPLATE_WORDS.search(f"-{'-'.join(words)}-") is not None
        if named and not _TEMPLATE_WORDS.issuperset(
            _BOILERPLATE_WORDS.sub("-", f"-{'-'.join(words)}-").split("-")
        ):
            named = False
            element.remove_attribute("id")
        if not (named or _has_boilerplate_class(element)) or element.closest("td,th,pre,code"):
            continue
        if element.closest(f"[{_SKIP}]"):
            continue
        if large < _MOST_LARGE and len(element.text or "") > most:
            large += 1
            element.remove_attribute("class")
            element.remove_attribute("id")
        else:
            element.set_attribute(_SKIP, "")


def _has_boilerplate_class(element: ElementNode) -> bool:
    tokens = (element.get_attribute("class") or "").split()
    return any(_BOILERPLATE_WORDS.search(f"-{'-'.join(_words(token))}-") for token in tokens)


def _words(name: str) -> list[str]:
    """The words of a class name or identifier: "postMeta_1" is post, meta."""
    return [word.lower() for word in _WORD_END.split(name) if word]


def _lower(document: DocumentNode, element: ElementNode) -> None:
    """Move an element some levels down, into divisions of its own."""
    outer = inner = document.create_element("div")
    for _ in range(_LEVELS_OF_A_LIST - 1):
        below = document.create_element("div")
        inner.append_child(below)
        inner = below
    element.replace_with(outer)
    inner.append_child(element)


def letters_lost(plain: str, text: str) -> float:
    """Share of the letters in the long lines of `plain` whose line is not a line of `text`, 0 to 1.

    A line that lost a single character counts whole.
    """
    lines = {_letters(line) for line in text.split("\n")}
    total = lost = 0
    for line in plain.split("\n"):
        letters = _letters(line)
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
        letters_lost=page["letters_lost"],
    )


def _metas(tree: HTMLTree) -> tuple[tuple[str, str], ...]:
    if tree.head is None:
        return ()
    elements = tree.head.query_selector_all("meta[name][content]")[:_META_TAGS]
    pairs = ((meta.get_attribute("name"), meta.get_attribute("content")) for meta in elements)
    return tuple(
        ((name or "")[:_META_LETTERS].lower(), (content or "").replace(_GUARD, "")[:_META_LETTERS])
        for name, content in pairs
    )


def _deeper_than(tree: HTMLTree, limit: int) -> bool:
    """Whether elements are nested beyond `limit`.

    Asked as a selector, which the parser's library answers some 50 times faster than a walk here.
    """
    chain = ">".join("*" * (limit + 1))
    return tree.document is not None and tree.document.query_selector(chain) is not None
