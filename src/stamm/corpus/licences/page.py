"""Licence detection for a page, from its markup and its response headers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from stamm.corpus.licences.expression import (
    LONGEST_VALUE,
    Licence,
    LicenceEvidence,
    strictest_licence,
)
from stamm.corpus.licences.markup import LONGEST_DATA, LicenceMark
from stamm.corpus.licences.names import spdx_expression

_MOST_NODES = 200
_METAS = ("dc.rights", "dc.license", "dc.rights.license", "dcterms.license", "dcterms.rights",
          "dcterms.rights.license", "license", "licence", "copyright", "rights")  # fmt: skip
_LINK = re.compile(
    r"<([^<>]{1,500})>((?:\s*;\s*[\w*-]{1,30}\s*=\s*(?:\"[^\"]{0,200}\"|[^\s;,\"]{1,200})){1,10})"
)
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))", re.IGNORECASE)
_ANCHOR = re.compile(r";\s*anchor\s*=", re.IGNORECASE)
_LONGEST_HEADER = 8192
# Kinds of schema.org that are a page or its text; others (ImageObject, Comment, ...) are parts.
_KINDS = (
    "WebPage ItemPage AboutPage FAQPage QAPage CollectionPage MedicalWebPage Article NewsArticle "
    "BlogPosting TechArticle ScholarlyArticle Report CreativeWork Book Chapter LearningResource "
    "Recipe HowTo"
)
_PAGE_KINDS = frozenset(_KINDS.split())


def page_licence(
    marks: Iterable[LicenceMark],
    metas: Iterable[tuple[str, str]] = (),
    link_headers: Iterable[str] = (),
) -> Licence:
    """The licence of a page: those of all signals about the whole page, together.

    marks          extract.ExtractedPage.marks
    metas          name in lower case and content of its meta elements
    link_headers   values of the HTTP header Link

    Edge     a statement of rights in a Dublin Core meta counts only when it names a licence or
             reserves all rights. JSON-LD counts at its top level and in @graph, for nodes that are
             a page or an article; when only some of several articles name a licence, none does.
    Checked  tests/unit/corpus/licences/test_page_licence.py
    """
    all_evidence: list[LicenceEvidence] = []
    for header in link_headers:
        all_evidence += [_evidence("header", target, True) for target in _licence_links(header)]
    for mark in marks:
        if mark.signal == "json-ld":
            all_evidence += [
                _evidence("json-ld", value, whole) for value, whole in _linked(mark.value)
            ]
        else:
            all_evidence.append(_evidence(mark.signal, mark.value, mark.whole))
    for name, content in metas:
        if name in _METAS:
            evidence = _evidence("meta", content, True)
            all_evidence += [evidence] if evidence.expression else []
    return strictest_licence(all_evidence)


def _evidence(signal: str, value: str, whole: bool) -> LicenceEvidence:
    shown = "".join(c if c.isprintable() else " " for c in value[:LONGEST_VALUE])
    return LicenceEvidence(
        signal=signal, value=shown, expression=spdx_expression(value), whole=whole
    )


def _licence_links(header: str) -> Iterator[str]:
    for match in _LINK.finditer(header[:_LONGEST_HEADER]):
        relation = _REL.search(match[2])
        named = (relation[1] or relation[2] or "").lower().split() if relation else []
        # A link with an anchor is about another resource (RFC 8288, 3.2).
        if "license" in named and not _ANCHOR.search(match[2]):
            yield match[1]


def _linked(block: str) -> list[tuple[str, bool]]:
    """The licences in a block of JSON-LD, and whether each applies to the page."""
    if len(block) > LONGEST_DATA:
        return []
    try:
        data = json.loads(block, parse_int=float)
    except (ValueError, RecursionError):
        return []
    nodes = _nodes(data)[:_MOST_NODES]
    page_nodes = [node for node in nodes if _kinds(node) & _PAGE_KINDS]
    articles = [n for n in page_nodes if any(k.endswith(("Article", "Posting")) for k in _kinds(n))]
    is_partial = any("license" in a for a in articles) and not all("license" in a for a in articles)
    licences = []
    for node in nodes:
        whole = any(node is m for m in page_nodes) and not (
            is_partial and any(node is a for a in articles)
        )
        licences += [(value, whole) for value in _values(node.get("license"))]
    return licences


def _nodes(data: Any) -> list[dict[str, Any]]:
    top = data if isinstance(data, list) else [data]
    nodes: list[dict[str, Any]] = []
    for node in top[:_MOST_NODES]:
        if isinstance(node, dict):
            nodes.append(node)
            graph = node.get("@graph")
            nodes += [n for n in graph if isinstance(n, dict)] if isinstance(graph, list) else []
    return nodes


def _kinds(node: dict[str, Any]) -> set[str]:
    kinds = node.get("@type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return {k.rsplit("/", 1)[-1] for k in listed if isinstance(k, str)}


def _values(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    texts = []
    for value in listed[:10]:
        if isinstance(value, dict):
            value = value.get("@id") or value.get("url") or value.get("name")
        if isinstance(value, str) and value.strip():
            texts.append(value.strip())
    return texts
