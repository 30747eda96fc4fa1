"""Licence detection for a page: every kind of markup, and nothing from a part of it."""

from __future__ import annotations

import json

import pytest
from corpus_inputs import page

from stamm.corpus.extract import extract
from stamm.corpus.licences.expression import Licence
from stamm.corpus.licences.page import page_licence
from stamm.corpus.limits import ReadLimits

BY = "https://creativecommons.org/licenses/by/4.0/"
SA = "https://creativecommons.org/licenses/by-sa/4.0/"
NC = "https://creativecommons.org/licenses/by-nc/4.0/"


def licence(body: str, head: str = "", links: tuple[str, ...] = ()) -> Licence:
    html = f"<html><head>{head}</head><body>{body}</body></html>".encode()
    found = extract(html, "utf-8", ReadLimits())
    return page_licence(found.marks, found.metas, links)


def linked(data: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(data)}</script>'


@pytest.mark.parametrize(
    "html",
    [
        f'<p>Text. <a rel="license" href="{BY}">CC</a></p>',
        f'<p><a rel="nofollow license" href="{BY}"><img alt="CC"></a></p>',
        f'<footer><ul><li><a rel="license" href="{BY}">CC BY</a></li></ul></footer>',
        f'<footer><p>This work is under <a href="{BY}">CC BY</a>.</p></footer>',
        f'<div role="contentinfo"><a href="{BY}">CC BY</a></div>',
        f'<div itemscope itemtype="https://schema.org/Article"><a itemprop="license" href="{BY}"></a>'
        "</div>",
        f'<div itemscope itemtype="https://schema.org/WebPage"><span itemprop="license">{BY}</span></div>',
        f'<span property="dct:license" resource="{BY}">CC</span>',
        f'<article><a rel="license" href="{BY}">CC</a></article>',
        linked({"@type": "NewsArticle", "license": BY}),
        linked({"@graph": [{"@type": ["WebPage"], "license": {"@id": BY}}]}),
        linked([{"@type": "https://schema.org/BlogPosting", "license": [BY]}]),
    ],
)
def test_marks_of_the_whole_page(html: str) -> None:
    found = licence(f"<p>Words of the page.</p>{html}")
    assert found.expression == "CC-BY-4.0"
    assert found.evidence[0].whole


def test_head_metas_and_header() -> None:
    assert licence("x", f'<link rel="license" href="{BY}">').expression == "CC-BY-4.0"
    assert licence("x", f'<meta name="DC.rights" content="{BY}">').expression == "CC-BY-4.0"
    assert licence("x", '<meta name="dcterms.license" content="CC0-1.0">').expression == "CC0-1.0"
    assert licence("x", '<meta name="dc.rights" content="Ask us.">') == Licence()
    header = (f'</style.css>; rel=preload, <{BY}>; rel="license"',)
    assert licence("x", links=header).expression == "CC-BY-4.0"
    assert licence("x", links=(f'<{BY}>; rel="license"; anchor="#img"',)) == Licence()
    assert licence("x", links=(f"<{BY}>; title=license",)) == Licence()


@pytest.mark.parametrize(
    "html",
    [
        f'<figure><img src="a"><figcaption><a rel="license" href="{BY}">CC</a></figcaption></figure>',
        f'<div class="comment"><a rel="license" href="{BY}">CC</a></div>',
        f'<li id="comments-12"><p><a rel="license" href="{BY}">CC</a></p></li>',
        f'<blockquote><a rel="license" href="{BY}">CC</a></blockquote>',
        f'<aside><a rel="license" href="{BY}">CC</a></aside>',
        f'<ul class="x"><li><a rel="license" href="{BY}">CC</a></li></ul>',
        f'<p>Photo: Anna, <a rel="license" href="{BY}">CC BY</a></p>',
        f'<footer>Icons by B under <a href="{BY}">CC BY</a></footer>',
        f'<div class="image-credit"><a rel="license" href="{BY}">CC</a></div>',
        f'<article>a</article><article><a rel="license" href="{BY}">CC</a></article>',
        f'<div about="#img1"><a rel="license" href="{BY}">CC</a></div>',
        f'<span about="/a.jpg" property="cc:license" content="{BY}"></span>',
        f'<div itemscope itemtype="https://schema.org/ImageObject"><a itemprop="license" href="{BY}">'
        "</a></div>",
        f'<footer><figure><a href="{BY}">CC</a></figure></footer>',
        f'<p>See <a href="{BY}">what CC BY means</a></p>',
        linked({"@type": "ImageObject", "license": BY}),
        linked({"@type": "Article", "image": {"@type": "ImageObject", "license": BY}}),
        linked([{"@type": "Article", "license": BY}, {"@type": "Article"}]),
        linked({"license": BY}),
        linked({"@type": "Comment", "license": BY}),
    ],
)
def test_a_part_never_licenses_the_page(html: str) -> None:
    found = licence(f"<p>Words of the page.</p>{html}")
    assert found.expression == ""
    assert not [e for e in found.evidence if e.whole]


def test_all_licences_of_the_page_hold() -> None:
    both = f'<a rel="license" href="{BY}">a</a>' + linked({"@type": "Article", "license": NC})
    found = licence(both)
    assert found.expression == "CC-BY-4.0 AND CC-BY-NC-4.0"
    assert {e.expression for e in found.evidence} == {"CC-BY-4.0", "CC-BY-NC-4.0"}
    older = BY.replace("4.0", "3.0")
    equal = f'<a rel="license" href="{BY}">a</a><a rel="license" href="{older}">b</a>'
    assert licence(equal).expression == "CC-BY-3.0 AND CC-BY-4.0"
    reserved = '<meta name="copyright" content="2024 A. All rights reserved">'
    assert licence(both, reserved).evidence[0].expression == "LicenseRef-All-Rights-Reserved"
    assert licence(both, reserved).expression == (
        "CC-BY-4.0 AND CC-BY-NC-4.0 AND LicenseRef-All-Rights-Reserved"
    )
    local = f'<a rel="license" href="/terms">t</a><a rel="license" href="{SA}">s</a>'
    assert licence(local).expression == "CC-BY-SA-4.0"


def test_a_page_without_a_word_has_no_licence() -> None:
    assert licence("<p>Words.</p>") == Licence()
    found = extract(page("Words."), None, ReadLimits())
    assert found.marks == ()


@pytest.mark.parametrize(
    "html",
    [
        f'<a rel="license" href="{BY}">' * 20_000,
        linked({"@type": "Article", "license": [BY] * 50_000}),
        '<script type="application/ld+json">' + '[{"license":' * 4000 + "</script>",
        '<script type="application/ld+json">{"license":</script>' * 5000,
        f'<a rel="license" href="{BY}{"x" * 100_000}">',
        "<div class='" + "image " * 20_000 + f"'><a rel=license href='{BY}'>x</a></div>",
        "<div>" * 900 + f'<a rel="license" href="{BY}">x</a>' * 100,
        "<footer>" + f'<a href="{BY}"></a>' * 20_000 + "</footer>",
    ],
)
def test_hostile_pages_are_bounded(html: str) -> None:
    found = licence(html)
    assert len(found.evidence) <= 8
    assert all(len(e.value) <= 200 for e in found.evidence)


def test_hostile_headers_are_bounded() -> None:
    # A step quadratic in these lengths would run into the time limit of a test.
    for header in (
        "<" * 200_000,
        "<a>;" * 50_000,
        f"<{BY}>" + "; a=b" * 50_000,
        '<a>; rel="' * 9999,
    ):
        assert page_licence((), (), (header,)) == Licence()


@pytest.mark.parametrize(
    "html",
    [
        f'<p>This page is not licensed under <a rel="license" href="{BY}">CC BY</a>.</p>',
        f'<p>Der Text steht nicht unter <a rel="license" href="{BY}">CC BY</a>.</p>',
        f'<div style="Display : none"><a rel="license" href="{BY}">CC BY</a></div>',
        f'<div hidden><p><a rel="license" href="{BY}">CC BY</a></p></div>',
        f'<div id="disqus_thread"><p><a rel="license" href="{BY}">CC BY</a></p></div>',
        f'<div class="forum-message"><a rel="license" href="{BY}">CC BY</a></div>',
        f'<p><a rel="license ugc" href="{BY}">CC BY</a></p>',
    ],
)
def test_what_is_denied_unseen_or_a_users_licenses_nothing(html: str) -> None:
    found = licence(f"<p>Words of the page.</p>{html}")
    assert found.expression == ""
    assert not found.evidence[0].whole


def test_a_page_that_is_licensed_unless_noted_otherwise_is_licensed() -> None:
    for noted in (
        "Unless noted otherwise",
        "If not stated otherwise",
        "Sofern nicht anders gesagt",
    ):
        sentence = f'<p>{noted}, under <a rel="license" href="{BY}">CC BY</a>.</p>'
        assert licence(sentence).expression == "CC-BY-4.0"
