"""Pages made to cost: bounded before, while and after they are parsed, and told like any other."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_inputs import page
from resiliparse.parse.html import DOMNode, HTMLTree, NodeType

from stamm.base.sandbox import apart
from stamm.corpus import extract as extraction
from stamm.corpus.extract import ExtractedPage, UnusablePageError, extract
from stamm.corpus.limits import ReadLimits

pytestmark = pytest.mark.slow  # costly pages

LIMITS = ReadLimits()
LETTERS = 400_000


def many(unit: str, letters: int = LETTERS) -> str:
    return unit * (letters // len(unit))


def numbered(unit: str, count: int) -> str:
    return "".join(unit % number for number in range(count))


SQUARES = {
    "attributes": "<div " + numbered("a%d ", 80_000) + ">text",
    "attributes in quotes with signs": "<div " + numbered('a%d=">"', 60_000) + ">text",
    "attributes of one element in many tags": numbered("<html a%d=1>", 60_000),
    "options": "<select>" + many("<option>x"),
    "formatting left open": "<p>" + numbered("<b a=%d>", 900) + many("<p>x", 200_000),
}


@pytest.mark.parametrize("html", SQUARES.values(), ids=SQUARES.keys())
def test_a_page_whose_cost_grows_with_its_square_is_ended_and_told(
    html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_CPU_S", 1)
    with pytest.raises(UnusablePageError, match="html_too_large: over 1 s of processor time"):
        extract(html.encode(), None, LIMITS)
    assert extract(page("The next page."), None, LIMITS).text == "The next page."


def test_wide_and_deep_together_are_bounded() -> None:
    with pytest.raises(UnusablePageError, match="html_too_deep: over 104 levels"):
        extract(b"<div>" * 990 + b"<p>x" * 190_000, None, LIMITS)
    assert extract(b"<div>" * 990 + b"<p>x" * 100, None, LIMITS).text.count("x") == 100


def test_cells_open_more_elements_than_they_have_tags() -> None:
    with pytest.raises(UnusablePageError, match="html_too_deep: over 1000 levels"):
        extract(b"<table><td>" * 400 + b"x", None, LIMITS)


HONEST = {
    "short": page("A short page.").decode(),
    "long": "<html lang=de><head><meta name=a content=b></head>" + many("<p>Many words here. "),
    "many attributes": many('<p class="a b c" id="d">Words.</p>') + "<a rel=license href=x>y</a>",
    "formatted": many("<p><b>Bold</b> and <i>slanted</i> <code>code</code></p>"),
    "no page": "\0<",
    "odd letters": "<p>\ud83d\ude00 \u202e é </p>".encode("utf-16", "surrogatepass").decode(
        "utf-16"
    ),
    "too deep": "<div>" * 1100 + "x",
}


@pytest.mark.parametrize("html", HONEST.values(), ids=HONEST.keys())
def test_a_page_says_the_same_apart(html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ExtractedPage | str] = []
    for cheap in (True, False):
        monkeypatch.setattr(extraction, "_is_cheap", lambda *_, cheap=cheap: cheap)
        try:
            told.append(extract(html.encode(), None, LIMITS))
        except UnusablePageError as error:
            told.append(str(error))
    assert told[0] == told[1]


def test_a_real_long_page_needs_no_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a copy was made")

    monkeypatch.setattr(extraction, "apart", refuse)
    paragraph = '<p class="text">Some <a href="/x">words</a> of <b>a</b> long page.</p>\n'
    assert extract(many(paragraph, 100_000).encode(), None, LIMITS).text


def test_depth_is_that_of_a_walk() -> None:
    dice = random.Random(0)
    names = (
        "div",
        "p",
        "b",
        "a",
        "table",
        "tr",
        "td",
        "li",
        "select",
        "option",
        "template",
        "svg",
        "g",
        "font",
    )
    deep = 0
    for _ in range(400):
        pieces = (
            dice.choice(("<%s>", "<%s>", "</%s>", "x<!--%s-->")) % dice.choice(names)
            for _ in range(dice.randint(1, 80))
        )
        tree = HTMLTree.parse("".join(pieces))
        assert tree.document is not None
        depth, limit = depth_of(tree.document), dice.randint(1, 20)
        deep += depth > limit
        assert extraction._deeper_than(tree, limit) == (depth > limit)
    assert 50 < deep < 350


def depth_of(node: DOMNode) -> int:
    below = [depth_of(child) for child in node.child_nodes if child.type == NodeType.ELEMENT]
    return 1 + max(below) if below else 0


@pytest.mark.parametrize("size", [0, 1, 10_000_000])
def test_what_is_done_apart_comes_back(size: int) -> None:
    assert apart(lambda: b"a" * size, cpu_s=30, memory_bytes=2**30) == b"a" * size


def test_a_copy_leaves_nothing_and_changes_nothing_here() -> None:
    held: list[int] = []

    def work() -> bytes:
        held.append(1)
        return b"done"

    def children() -> set[str]:  # those that ended and were not waited for included
        tasks = Path("/proc/self/task").glob("*/children")
        return {child for task in tasks for child in task.read_text().split()}

    before, known = len(list(Path("/dev/fd").iterdir())), children()
    for _ in range(20):
        assert apart(work, cpu_s=30, memory_bytes=2**30) == b"done"
    assert not held
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert children() == known


def spin() -> bytes:
    while True:
        pass


def hoard() -> bytes:
    return b"".join(bytes(2**26) for _ in range(64))


def crash() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b"never"


@pytest.mark.parametrize("work", [spin, hoard, crash])
def test_a_copy_that_is_ended_gives_nothing(work: Callable[[], bytes]) -> None:
    assert apart(work, cpu_s=1, memory_bytes=2**28) is None


def test_what_fails_apart_is_not_done_again_here() -> None:
    here = os.getpid()

    def fail() -> bytes:
        assert os.getpid() != here, "done again without a bound"
        raise RuntimeError("as a library says it that gets no memory")

    assert apart(fail, cpu_s=30, memory_bytes=2**30) is None


def test_a_page_that_takes_too_much_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "_MEMORY_BYTES", 2**26)
    with pytest.raises(UnusablePageError, match="html_too_large"):
        extract(SQUARES["formatting left open"].encode(), None, LIMITS)
