"""What pages of real sites have, and an extraction of main content loses or joins wrongly."""

from __future__ import annotations

import pytest

from stamm.corpus.extract import extract
from stamm.corpus.limits import ReadLimits

BEFORE = "This is the first paragraph of the page, with enough words in it to be text."
AFTER = "This is the last paragraph of the page, which has enough words in it, too."


def text_of(html: str) -> str:
    """The text between two paragraphs of a page."""
    page = f"<html><body><main><p>{BEFORE}</p>{html}<p>{AFTER}</p></main></body></html>"
    text = extract(page.encode(), None, ReadLimits()).text
    assert text.startswith(BEFORE) and text.endswith(AFTER)
    return text[len(BEFORE) : -len(AFTER)].strip("\n")


def code(lines: str) -> str:
    return f"<table class=highlighttable><tr>{lines}<td class=code><pre>import os\nos.x()</pre></td></tr></table>"


SEMANTICS = (
    "<math{}><semantics><mi>x</mi><annotation encoding='application/x-tex'>{}</annotation>"
    "</semantics></math>"
)
PAGES = {
    "list from 5": ("<ol start=5><li>five</li><li>six</li></ol>", "  5. five\n  6. six"),
    "list down": ("<ol reversed><li>two</li><li>one</li></ol>", "  2. two\n  1. one"),
    "list down from 9": ("<ol reversed start=9><li>a</li><li>b</li></ol>", "  9. a\n  8. b"),
    "numbers of items": ("<ol><li value=7>a</li><li>b</li></ol>", "  7. a\n  8. b"),
    "letters": ("<ol type=a start=26><li>z</li><li>next</li></ol>", "  z. z\n  aa. next"),
    "capitals": ("<ol type=A><li>a</li></ol>", "  A. a"),
    "Roman numbers": ("<ol type=I start=4><li>a</li><li>b</li></ol>", "  IV. a\n  V. b"),
    "a list in a numbered list": (
        "<ol><li>one<ol start=3><li>three</li></ol></li><li>two</li></ol>",
        "  1. one\n    3. three\n  2. two",
    ),
    "numbered paragraphs": ("<ol start=2><li><p>two</p></li></ol>", "  2. two"),
    "a number that is none": ("<ol start=x><li value=''>one</li></ol>", "  1. one"),
    "TeX of a formula": (f"<p>So {SEMANTICS.format('', 'x^2')} holds.</p>", "So $x^2$ holds."),
    "KaTeX": (
        f"<p>So <span class=katex><span class=katex-mathml>{SEMANTICS.format('', 'x')}</span>"
        "<span class=katex-html aria-hidden=true>x</span></span> holds.</p>",
        "So $x$ holds.",
    ),
    "Wikipedia": (
        "<p>The <span><span class=mwe-math-mathml-inline style='display: none;'>"
        + SEMANTICS.format("", "{\\displaystyle x^{2}}")
        + "</span><img src=x alt='x^2'></span> term.</p>",
        "The $x^{2}$ term.",
    ),
    "alttext": ("<p>So <math alttext='E=mc^2'><mi>E</mi></math>.</p>", "So $E=mc^2$."),
    "MathJax": ("<p>So <script type='math/tex'>a<b</script>.</p>", "So $a<b$."),
    "MathJax display": (
        "<p>So</p><script type='math/tex; mode=display'>a</script><p>is</p>",
        "So\n\n$$a$$\n\nis",
    ),
    "formula without TeX": (
        "<p><math><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup><mo>+</mo>"
        "<msub><mi>a</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><mo>+</mo><msqrt><mi>x</mi></msqrt>"
        "<mo>+</mo><msqrt><mi>x</mi><mo>+</mo><mn>1</mn></msqrt></math></p>",
        "E=mc^2+a_(ij)+√x+√(x+1)",
    ),
    "line numbers in a cell": (
        code("<td class=linenos><div class=linenodiv><pre>1\n2</pre></div></td>"),
        "import os\nos.x()",
    ),
    "line numbers in code": (
        "<pre><span class=lineno>1 </span>import os\n<span class=lineno>2 </span>os.x()</pre>",
        "import os\nos.x()",
    ),
    "a word called line number": ("<p>See <span class=ln>line 1</span></p>", "See line 1"),
    "soft hyphens": ("<p>Donau\u00addampf&shy;schiff</p>", "Donaudampfschiff"),
    "joiners": (
        "<p>می\u200cخواهم ක්&zwj;ෂ ភាសា\u200bខ្មែរ <b>&zwnj;</b>می</p>",
        "می\u200cخواهم ක්\u200dෂ ភាសា\u200bខ្មែរ \u200cمی",
    ),
    "ruby text of a container": (
        "<p><ruby><rb>東</rb><rb>京</rb><rtc><rt>とう</rt><rt>きょう</rt></rtc><rtc>Tokyo</rtc></ruby>へ</p>",
        "東京へ",
    ),
    "hidden until found": ("<div hidden=until-found><p>An answer.</p></div>", "An answer."),
    "notes in a footer": ("<footer class=footnotes><p>The source.</p></footer>", "The source."),
    "source of a quotation": (
        "<blockquote><p>To be.</p><footer>— Hamlet</footer></blockquote>",
        "To be.\n\n— Hamlet",
    ),
    "link to edit": (
        "<h2>History<span class=mw-editsection>[<a href=x>edit</a>]</span></h2><p>Text.</p>",
        "History\n\nText.",
    ),
    "vertical text": ("<p>昭和<span class=upright>二</span>十<em>五</em>年</p>", "昭和二十五年"),
}


@pytest.mark.parametrize(("html", "text"), PAGES.values(), ids=PAGES.keys())
def test_a_page_is_written_out(html: str, text: str) -> None:
    assert text_of(html) == text


CONTENT_CLASSES = (
    *("related-work", "article-footer-notes", "footer-notes", "author-notes", "comment-on-law"),
    *("copyright-law", "share-of-market", "rating-agencies", "reply-to-critics", "modal-logic"),
    *(
        "cookie-recipe",
        "post-meta-analysis",
        "more-on-this",
        "print-hidden",
        "sidebar-left content",
    ),
    *("email-basics", "sponsor-law", "search-theory", "popular-science", "hidden-markov"),
)


@pytest.mark.parametrize("name", CONTENT_CLASSES)
def test_a_section_with_a_heading_is_kept_whatever_its_class_names_among_other_words(
    name: str,
) -> None:
    html = f"<section class='{name}'><h2>On it</h2><p>The text of the section.</p></section>"
    assert text_of(html) == "On it\n\nThe text of the section."


@pytest.mark.parametrize(
    "name", ["related-posts", "comment-list", "newsletter-signup", "author-bio"]
)
def test_a_section_of_a_template_is_left_out(name: str) -> None:
    html = f"<div class='{name}'><h3>On it</h3><p>The text of the section.</p></div>"
    assert text_of(html) == ""


def test_a_section_of_links_is_left_out() -> None:
    links = "<p><a href=/x>The text of a link in it</a></p>" * 3
    assert text_of(f"<div class=related-offers><h3>On it</h3>{links}</div>") == ""


def test_a_form_around_most_of_the_page_is_read() -> None:
    html = f"<body><h1>Title</h1><form><div><p>{BEFORE}</p><p>{AFTER}</p></div></form><p>End.</p></body>"
    text = extract(html.encode(), None, ReadLimits()).text
    assert text == f"Title\n\n{BEFORE}\n\n{AFTER}\n\nEnd."
