"""The documentation site builds without a warning, offline, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from stamm.cli.main import VERBS
from stamm.recipes.catalog import RECIPES
from tools.docs_gallery import write_gallery
from tools.docs_reference import command_pages, module_pages, recipe_page
from tools.docs_site import DOCS, build


@pytest.mark.slow
def test_the_site_builds_and_every_local_link_exists(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(site, ["relu", "xielu"])
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert (site / "gallery" / "xielu.html") in pages
    assert (site / "log" / "2026-11-23-alignment-truth.html") in pages
    missing = [
        f"{page.relative_to(site)} -> {link}"
        for page, text in pages.items()
        if "_static" not in page.parts
        for link in re.findall(r'(?:href|src)="([^"#]+)', text)
        if ":" not in link and not (page.parent / unquote(link.partition("?")[0])).exists()
    ]
    assert not missing
    # No page loads anything from a network.
    loaded = r'<(?:script|img|link)[^>]+(?:src|href)="https?:'
    assert not [page for page, text in pages.items() if re.search(loaded, text)]


def test_every_guide_is_in_the_index() -> None:
    text = (DOCS / "site" / "index.md").read_text(encoding="utf-8")
    for tutorial in (DOCS / "tutorials").glob("*.md"):
        assert f"tutorials/{tutorial.stem}" in text


def test_the_reference_names_every_verb_and_recipe() -> None:
    pages = command_pages()
    assert set(pages) == {"stamm.md"} | {f"{verb.name}.md" for verb in VERBS}
    assert "usage: stamm derive" in pages["derive.md"]
    text = recipe_page()
    assert all(f"`{recipe.name}`" in text for recipe in RECIPES)


def test_a_module_page_has_signatures_and_docstrings(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "part.py").write_text(
        '"""A part."""\n\ndef double(x: int) -> int:\n    """Twice `x`."""\n\ndef _own() -> None: ...\n'
    )
    (text,) = module_pages(package).values()
    assert "def double(x: int) -> int" in text
    assert "Twice `x`." in text
    assert "_own" not in text


def test_the_gallery_escapes_titles_and_draws_gaps(tmp_path: Path) -> None:
    markdown = write_gallery(["relu"], tmp_path)
    assert 'href="' in markdown
    assert (tmp_path / "relu.html").is_file()
    compare = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert '"relu":{"function":[' in compare
    assert "null" in compare  # the gap at the knot
    assert "{CURVES}" not in compare


def test_the_gallery_has_a_filter_a_way_back_and_marks_of_gated_units(tmp_path: Path) -> None:
    markdown = write_gallery(["relu", "swiglu"], tmp_path)
    assert markdown.count('data-kind="gated"') == markdown.count('class="gated"') == 1
    assert markdown.count('data-kind="plain"') == 1
    assert "Dark lines" not in markdown  # in a dark theme they are light
    assert 'id="gallery-name"' in markdown and "</script>" in markdown
    for name in ("relu", "swiglu"):
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert page.count('<a href="../gallery.html">') == 1
