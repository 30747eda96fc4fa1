"""Edits of a parsed page before its text is extracted: what resiliparse would delete, number or join
wrongly, and what is marked as boilerplate.

The edits are made on the tree, since only a parser knows where a tag ends.

Source   resiliparse 2.0.1, html2text (the rules meant by "deletes" below)
Checked  tests/unit/corpus/test_extract.py, tests/unit/corpus/test_page_tree.py
"""

from __future__ import annotations

import functools
import re
from html import unescape
from pathlib import Path

from resiliparse.parse.html import TEXT, DocumentNode, ElementNode

from stamm.base.files import read_json

# A text node of one character from U+0800 to U+FFFF is taken for an icon and deleted. A noncharacter
# behind it, which no text contains, prevents that.
_GUARD = "\ufdd0"
_LONE = re.compile(r">\s*(&[#\w]{1,9};?|[\u0800-\udfff\uf900-\uffff])(?=\s*<)")
# Before the number of a list item, which follows a bullet.
_NUMBER = "\ufdd1"
_SOFT_HYPHEN = "\xad"
# Inline elements are deleted by class, rel or name (time) in the middle of a sentence: those beside
# text, and all within code and cells, are left without attributes, unless they are hidden.
_INLINE = (
    "a,abbr,b,bdi,button,cite,code,data,del,em,font,i,ins,kbd,label,mark,q,s,samp,small,span,strong,"
    "sub,sup,time,u,var"
)
_WITHOUT_RULES = ("time", "label", "button")
# Attributes that rules look at.
_RULED = ":is([class],[id],[rel],[itemprop],[aria-expanded],[data-ad],[data-advertisement],[data-text-ad])"
_RULED_INLINE = f":is({_INLINE}){_RULED},{','.join(_WITHOUT_RULES)}"
_CELLS = (
    f":is(td,th){_RULED},:is(td,th) > {_RULED}:is({_INLINE}),:is(td,th) > :is(time,label,button)"
)
_CODE = f"pre{_RULED},:is(pre,code) {_RULED},:is(pre,code) :is(time,label,button)"
_HIDDEN_STYLE = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE
)
# A list fewer than four levels below body is taken for navigation.
_SHALLOW_LISTS = "body > ul, body > * > ul, body > * > * > ul"
_LEVELS_OF_A_LIST = 4
_MOST_SHALLOW_LISTS = 1000

_EXPONENT = re.compile(r"\s*[-+\u2212\u2013]?\d+\s*")
_SCRIPTS = {
    "msup": "^", "msub": "_", "msubsup": "_^", "munder": "_", "munderover": "_^", "mfrac": "/",
}  # fmt: skip
_STYLED = re.compile(r"\{\\(?:display|text)style (.*)\}", re.DOTALL)
_NUMBERED = "ol[start],ol[reversed],ol[type],ol:has(> li[value])"
_AROUND_ITEMS = ("p", "div", "span", "section")
_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l")),
    *((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_LINE_NUMBERS = (
    ".linenos,.lineno,.linenodiv,.lnt,.ln,.line-number,.rouge-gutter,.hljs-ln-numbers,td.gutter"
)
_EDIT_LINK = ".mw-editsection"
_DIGITS = re.compile(r"[\d\s]*")
# A footer of a quotation names its source, and one with notes is read.
_READ_FOOTERS = (
    "blockquote footer,footer:is([class*=footnote i],[class*=endnote i],[role=doc-endnotes]),"
    "footer:has(> :is([class*=footnote i],[class*=endnote i],[role=doc-endnotes]))"
)

_NOT_THE_PAGE = ":not(body,html,main,article,h1,:has(h1,article,main))"
# Words of class names and identifiers: stems that occur in those of boilerplate, its names, and names by
# which resiliparse deletes an element; `template` has other words in the identifiers of boilerplate. Each
# removes more unwanted than wanted passages of the development half of the public pages
# (docs/log/2026-11-26-extraction.md).
_WORDS = read_json(Path(__file__).with_name("boilerplate.json"))
_BOILERPLATE_NAMES, _DELETED_NAMES = "|".join(_WORDS["names"]), "|".join(_WORDS["deleted"])
_BOILERPLATE_WORDS = re.compile(f"(?<=-)(?:{_BOILERPLATE_NAMES})(?=-)")
_DELETED_WORDS = re.compile(f"(?<=-)(?:{_BOILERPLATE_NAMES}|{_DELETED_NAMES})(?=-)")
_WORD_END = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+")
_TEMPLATE_WORDS = frozenset(_WORDS["template"])
MOST_OF_THE_TEXT = 0.7
"""Share of the text of a page that is never left out."""
_NEVER_BOILERPLATE = "td,th,pre,code"
_SECTION = ":is(h1,h2,h3,h4) ~ p"
_SECTIONS = f"[class]:has(> {_SECTION})"
_MOST_LINKED = 0.2
_MOST_LINKS = 1000
_MOST_LARGE = 20  # elements whose text is compared with the page's
_SKIP = "stamm-boilerplate"  # the attribute that marks them
BOILERPLATE = (f"footer{_NOT_THE_PAGE}", f"form{_NOT_THE_PAGE}", f"[{_SKIP}]")
"""Selectors of what is left out, with what `mark_boilerplate` found."""


def _containing(key: str) -> str:
    return ",".join(f'[{key}*="{stem}" i]' for stem in _WORDS["stems"])


# Elements without the attribute are skipped.
_CANDIDATES = ",".join(f"[{key}]:is({_containing(key)}){_NOT_THE_PAGE}" for key in ("class", "id"))


def protected(html: str) -> str:
    """The page with a mark behind what would be taken for an icon."""
    return _LONE.sub(_guarded, f">{html}<")[1:-1]


def without_marks(text: str) -> str:
    """A text of the edited page without the marks of these edits, and without soft hyphens."""
    text = text.replace(_GUARD, "").replace(f"• {_NUMBER}", "").replace(_NUMBER, "")
    return text.replace(_SOFT_HYPHEN, "")


def write_out(document: DocumentNode) -> None:
    """Apply the edits that every extraction of the page needs: inline elements, formulas, lists, code."""
    # Over a list, here and below: iterating over the nodes of a selector takes quadratic time.
    for element in document.query_selector_all(f"{_LINE_NUMBERS},{_EDIT_LINK}")[:]:
        if element.matches(_EDIT_LINK) or _DIGITS.fullmatch(element.text or ""):
            element.replace_with(document.create_text_node(""))
    _unwrap(document)
    _mark_exponents(document)
    _write_formulas(document)
    _number_lists(document)
    for element in document.query_selector_all('[hidden="until-found" i]')[:]:
        element.remove_attribute("hidden")
    for element in document.query_selector_all(_READ_FOOTERS)[:]:
        _rename(document, element, "div")


def lower_lists(document: DocumentNode) -> None:
    """Move lists near the body some levels down: resiliparse takes them for navigation."""
    for element in document.query_selector_all(_SHALLOW_LISTS)[:_MOST_SHALLOW_LISTS]:
        outer = inner = document.create_element("div")
        for _ in range(_LEVELS_OF_A_LIST - 1):
            below = document.create_element("div")
            inner.append_child(below)
            inner = below
        element.replace_with(outer)
        inner.append_child(element)


def _unwrap(document: DocumentNode) -> None:
    """Remove the attributes by which resiliparse would delete the inline elements of a sentence.

    On the tree, since only a parser knows where a tag ends.
    """
    for element in document.query_selector_all(_RULED_INLINE)[:]:
        if _in_a_sentence(element) and not _is_hidden(element):
            _make_plain(document, element)
    for kept, inside in (("td,th", _CELLS), ("pre,code", _CODE)):
        if document.query_selector(kept) is None:
            continue
        for element in document.query_selector_all(inside)[:]:
            if not _is_hidden(element):
                _make_plain(document, element)


def _mark_exponents(document: DocumentNode) -> None:
    """Write powers of numbers with a mark: 10^-3."""
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


def _write_formulas(document: DocumentNode) -> None:
    """Write a formula as its TeX source, $x^2$, or else on a line with marks: x^2, a_1, 1/(x+2).

    Wikipedia hides the formula behind its picture; MathJax keeps the source in a script.
    """
    for script in document.query_selector_all('script[type^="math/tex" i]')[:]:
        mark = "$$" if "display" in (script.get_attribute("type") or "") else "$"
        script.replace_with(document.create_text_node(f"{mark}{(script.text or '').strip()}{mark}"))
    for formula in document.query_selector_all("math")[:]:
        parent = formula.parent
        if isinstance(parent, ElementNode) and parent.local_name == "span" and _is_hidden(parent):
            _make_plain(document, parent)
        source = formula.query_selector('annotation[encoding*="tex" i]')
        tex = (source.text if source is not None else formula.get_attribute("alttext")) or ""
        if tex := tex.strip():
            styled = _STYLED.fullmatch(tex)
            written = f"${styled[1].strip() if styled else tex}$"
            formula.replace_with(document.create_text_node(written))
            continue
        for element in formula.query_selector_all(",".join(_SCRIPTS))[:]:
            parts = element.children[:]
            name = element.local_name or ""
            for part in parts if name == "mfrac" else parts[1:]:
                if part.child_element_count > 1:
                    _enclose(document, part, "(", ")")
            for part, mark in zip(parts[1:], _SCRIPTS[name], strict=False):
                part.prepend(document.create_text_node(mark))
        for root in formula.query_selector_all("msqrt")[:]:
            single = root.child_element_count == 1
            _enclose(document, root, f"√{_GUARD}" if single else "√(", "" if single else ")")


def _enclose(document: DocumentNode, element: ElementNode, before: str, after: str) -> None:
    element.prepend(document.create_text_node(before))
    element.append(document.create_text_node(after))


def _number_lists(document: DocumentNode) -> None:
    """Write the numbers of lists that do not count 1, 2, 3, as text of their items."""
    for numbered in document.query_selector_all(_NUMBERED)[:]:
        items = [item for item in numbered.children[:] if item.local_name == "li"]
        down = numbered.has_attribute("reversed")
        number = _integer(numbered.get_attribute("start"), len(items) if down else 1)
        for item in items:
            number = _integer(item.get_attribute("value"), number)
            label = f"{_NUMBER}{_label(number, numbered.get_attribute('type') or '1')}. "
            _first_block(item).prepend(document.create_text_node(label))
            number += -1 if down else 1
        _rename(document, numbered, "ul")


def _integer(value: str | None, otherwise: int) -> int:
    text = (value or "").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else otherwise


def _label(number: int, kind: str) -> str:
    """A number as its list shows it: 4, d, D, iv or IV."""
    label = str(number)
    if kind in ("a", "A") and number > 0:
        label, rest = "", number
        while rest:
            rest, letter = divmod(rest - 1, 26)
            label = chr(ord("a") + letter) + label
    elif kind in ("i", "I") and 0 < number < 4000:
        label, rest = "", number
        for value, letters in _ROMAN:
            count, rest = divmod(rest, value)
            label += letters * count
    return label.upper() if kind in ("A", "I") else label


def _first_block(item: ElementNode) -> ElementNode:
    """The innermost element that the text of an item begins in."""
    while True:
        first = item.first_child
        while (
            first is not None and first.node_type == TEXT and not (first.node_value or "").strip()
        ):
            first = first.next_sibling
        if not isinstance(first, ElementNode) or first.local_name not in _AROUND_ITEMS:
            return item
        item = first


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
        _rename(document, element, "span")


def _rename(document: DocumentNode, element: ElementNode, name: str) -> None:
    """Replace an element by one of another name, without attributes."""
    renamed = document.create_element(name)
    element.replace_with(renamed)
    while (child := element.first_child) is not None:
        renamed.append_child(child)


def _guarded(node: re.Match[str]) -> str:
    icon = "\ue000" <= unescape(node[1]) <= "\uf8ff"  # of an icon font, in the private use area
    return node[0] if icon else node[0] + _GUARD


def mark_boilerplate(document: DocumentNode, body: ElementNode) -> None:
    """Mark what its class or identifier names as boilerplate, unless it has most of the text.

    An identifier of other words besides is one of the content ("related-work"): it is taken off, and
    so are the classes of such words of a section with a heading (`_is_section`).
    """
    most = MOST_OF_THE_TEXT * len(body.text or "")
    for element in document.query_selector_all("form")[:_MOST_LARGE]:
        if len(element.text or "") > most:
            _rename(document, element, "div")
    for element in document.query_selector_all(_SECTIONS)[:]:
        classes = (element.get_attribute("class") or "").split()
        if any(_kind(name, _DELETED_WORDS) == "other" for name in classes) and _is_section(element):
            element.remove_attribute("class")
    has_cells_or_code = document.query_selector(_NEVER_BOILERPLATE) is not None
    large = 0
    for element in document.query_selector_all(_CANDIDATES)[:]:
        kind = _kind(element.get_attribute("id") or "", _BOILERPLATE_WORDS)
        if kind == "other":
            element.remove_attribute("id")
        if kind != "boilerplate" and not _has_boilerplate_class(element):
            continue
        if has_cells_or_code and element.closest(_NEVER_BOILERPLATE):
            continue
        if large < _MOST_LARGE and len(element.text or "") > most:
            large += 1
            element.remove_attribute("class")
            element.remove_attribute("id")
        else:
            element.set_attribute(_SKIP, "")


def _has_boilerplate_class(element: ElementNode) -> bool:
    """Whether a class names boilerplate, and not a section (`_is_section`)."""
    classes = (element.get_attribute("class") or "").split()
    kinds = {_kind(name, _BOILERPLATE_WORDS) for name in classes}
    if "boilerplate" in kinds or "other" not in kinds:
        return "boilerplate" in kinds
    if _is_section(element):
        element.remove_attribute("class")
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _kind(name: str, named: re.Pattern[str]) -> str:
    """Kind of a class name or identifier: "boilerplate" where it is of words of `named` and of
    templates, "other" where it has other words, too, "" without any of `named`."""
    words = "-".join(
        word.lower() for word in _WORD_END.split(name) if word
    )  # postMeta_1: post-meta
    others = named.sub("", f"-{words}-")
    if len(others) == len(words) + 2:
        return ""
    return "boilerplate" if _TEMPLATE_WORDS.issuperset(others.split("-")) else "other"


def _is_section(element: ElementNode) -> bool:
    """Whether an element has a heading followed by paragraphs, and few links: it is content where its
    class is of other words than those of boilerplate ("related-work")."""
    if element.query_selector(_SECTION) is None:
        return False
    links = element.query_selector_all("a")[:_MOST_LINKS]
    return sum(map(_letters, links)) <= _MOST_LINKED * _letters(element)


def _letters(element: ElementNode) -> int:
    return sum(map(len, (element.text or "").split()))
