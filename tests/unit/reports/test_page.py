"""The whole page: safe against hostile text, self-contained, well-formed, the same each time."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stamm.pages.config import ReportConfig
from stamm.reports.job import PAGE, run, write_report
from stamm.runs.job import Workspace
from tests.unit.reports.run_folder import (
    HOSTILE,
    ledger_rows,
    write,
    write_arm,
    write_ledger,
    write_study,
    write_summary,
)

VOID = {"meta", "br", "img", "input", "hr", "link"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "footer", "section",
    "h1", "h2", "h3", "p", "ul", "ol", "li", "a", "b", "br", "span", "small", "code", "div",
    "figure", "figcaption", "details", "summary", "table", "caption", "thead", "tbody", "tr", "th",
    "td", "svg", "g", "path", "text", "tspan", "defs", "use", "clippath", "rect",
}  # fmt: skip


class Page(HTMLParser):
    """Every tag of a page, with a complaint when one is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.problems: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def html(study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out") / "page.html"
    return write_report(study, out).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_tag_is_known_and_closed(page: Page) -> None:
    assert page.problems == []
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED


def test_hostile_text_is_shown_and_not_obeyed(page: Page, html: str) -> None:
    assert "<script" not in html.lower()
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert HOSTILE in page.text


def test_nothing_refers_to_the_network(page: Page) -> None:
    references = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("href", "src", "srcset", "action", "data", "poster", "xlink:href")
    ]
    assert references
    assert all(value is not None and value.startswith("#") for value in references)
    styles = " ".join(value or "" for _, a in page.tags for n, value in a.items() if n == "style")
    assert re.findall(r"url\((?!#)", styles) == []


def test_the_style_sheet_loads_nothing(html: str) -> None:
    sheet = html.partition("<style>")[2].partition("</style>")[0]
    assert "--series-0" in sheet
    assert "url(" not in sheet
    assert "@import" not in sheet


def test_a_javascript_address_is_text(page: Page) -> None:
    assert "javascript:alert(1)" in page.text
    assert not any(
        "javascript" in (value or "")
        for _, attributes in page.tags
        for value in attributes.values()
    )


def test_a_policy_forbids_scripts_and_network(page: Page) -> None:
    policies = [a["content"] for tag, a in page.tags if a.get("http-equiv")]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    ]


def test_names_are_unique_and_every_reference_has_its_target(page: Page) -> None:
    names = [a["id"] for _, a in page.tags if "id" in a]
    assert len(names) == len(set(names))
    used = {a["href"][1:] for _, a in page.tags if (a.get("href") or "").startswith("#")}
    for _, attributes in page.tags:
        for value in attributes.values():
            used.update(re.findall(r"url\(#([^)]+)\)", value or ""))
        used.update((attributes.get("aria-labelledby") or "").split())
    assert used <= set(names)


def test_every_figure_has_words_for_those_who_cannot_see_it(page: Page) -> None:
    drawings = [a for tag, a in page.tags if a.get("role") == "img"]
    assert len(drawings) == 12
    panels = sum(a.get("class") == "panels" for _, a in page.tags)
    # Figures of several panels have a drawing for each, to be stacked on a narrow screen.
    assert sum(tag == "svg" for tag, _ in page.tags) >= 12 + panels > 12
    assert all(len(a.get("aria-label") or "") > 20 for a in drawings)
    heads = sum(tag == "thead" for tag, _ in page.tags)
    assert heads == sum(tag == "table" for tag, _ in page.tags)


def test_colours_are_left_to_the_theme(page: Page) -> None:
    styles = [a["style"] or "" for _, a in page.tags if "style" in a]
    assert any("var(--series-0)" in style for style in styles)
    assert [style for style in styles if re.search(r"#[0-9a-f]{3,6}", style)] == []


def test_the_page_is_small(html: str) -> None:
    assert len(html.encode()) < 3_000_000


def test_the_same_folder_gives_the_same_bytes(study: Path, html: str, tmp_path: Path) -> None:
    again = write_report(study, tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == html


def test_the_words_of_the_page(page: Page) -> None:
    for words in (
        "demo: swiglu, relu2 and xielu",
        "xielu has the lowest held-out loss of 3 arms",
        "does not say which activation is better",
        "arms/{swiglu,relu2,xielu}/evaluate/held_out.json",
        "stamm evaluate",
        "robots disallow",
        "Disallow: / (User-agent: GPTBot)",
        "GPTBot, CCBot",
        "unknown host",
        "2019-08-01",
        "e-mail addresses",
        "transformers, float32",
        "0123456789abcdef",
        "torch 2.13.0+cpu",
        "Together 37 s",
        "CC-BY-4.0",
    ):
        assert words in page.text, words


def test_the_planted_passages_are_not_counted_as_documents(page: Page) -> None:
    assert "17 of 107 documents" in page.text


def test_missing_parts_are_said_to_be_missing(tmp_path: Path) -> None:
    root = write_study(tmp_path / "runs" / "demo")
    shutil.rmtree(root / "corpus")
    shutil.rmtree(root / "tokenizer")
    shutil.rmtree(root / "pack")
    for arm in ("swiglu", "relu2", "xielu"):
        shutil.rmtree(root / "arms" / arm / "audit")
        shutil.rmtree(root / "arms" / arm / "evaluate")
    shutil.rmtree(root / "arms" / "xielu" / "export")
    page = Page(write_report(root, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.problems == []
    for words in (
        "No arm has a held-out evaluation yet",
        "Held-out evaluation of swiglu: not run. stamm evaluate runs/demo/arms/swiglu does it.",
        "Memorization audit of xielu: not run.",
        "Export: not run.",
        "Corpus: not run.",
    ):
        assert words in page.text, words


def test_invisible_characters_are_shown_everywhere(tmp_path: Path) -> None:
    trick = "a\u202eb\ud800c\x1b[31m\x00"
    root = write_study(tmp_path / "runs" / "demo")
    for name, key in (("config.json", "recipe"), ("manifest.json", "version")):
        write(root / name, {**json.loads((root / name).read_text()), key: trick})
    rows = ledger_rows()
    for row in rows:
        row.update(language="x\u202ey", source=HOSTILE, host="h\x07st")
    write_ledger(root / "corpus", rows)
    write_summary(root / "corpus", rows)
    html = write_report(root, tmp_path / "page.html").read_text(encoding="utf-8")
    assert not {c for c in html if not c.isprintable()} - {"\n"}
    assert "a\\u202eb\\ud800c\\x1b[31m\\x00" in html
    assert Page(html).problems == []
    assert "<script" not in html


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    write_study(tmp_path / "whole")
    root.mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", root)
    page = Page(write_report(root, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.problems == []
    assert "No model was trained yet." in page.text
    assert "Training: not run." in page.text
    assert "manifest.json: not run." in page.text


def test_a_single_arm_has_a_page_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs") / "alone"
    write_arm(folder, "xielu", 0)
    page = Page(write_report(folder, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.problems == []
    assert "There is one arm, so there is nothing to compare it with." in page.text
    assert "From metrics.jsonl" in page.text
    assert "stamm audit runs/alone" in page.text
    assert "This folder holds one arm and no corpus" in page.text


def test_commands_for_an_arm_of_a_study_name_the_study(study: Path, tmp_path: Path) -> None:
    html = write_report(study / "arms" / "xielu", tmp_path / "page.html").read_text("utf-8")
    assert "/demo/arms/xielu</code>" in html


def test_the_job_leaves_its_page_in_the_workspace(study: Path, tmp_path: Path) -> None:
    run(ReportConfig(title="A <b>name</b>"), Workspace(folder=tmp_path, inputs={"run": study}))
    html = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "<title>A &lt;b&gt;name&lt;/b&gt; – stamm report</title>" in html


def test_settings_bound_what_is_quoted(study: Path, tmp_path: Path) -> None:
    config = ReportConfig(passages=0, examples=0, excerpt_characters=40)
    page = Page(write_report(study, tmp_path / "page.html", config).read_text(encoding="utf-8"))
    assert "what it wrote" not in page.text
    assert "Documents that were left out" not in page.text


def test_a_narrow_screen_has_everything_or_a_hint(page: Page, html: str) -> None:
    """At 400 pixels panels and results are stacked; what scrolls sideways says so."""
    assert (
        ".wide:not(.stacked)::before { content: " in html
        and ".stack thead { display: none; }" in html
    )
    results = [a for _, a in page.tags if a.get("data-label")]
    assert {"held-out loss, nats/token", "training, s"} <= {a["data-label"] for a in results}
    first = next(a for tag, a in page.tags if tag == "a")
    assert (first["class"], first["href"]) == ("skip", "#content")


def test_speed_and_time_of_a_row_are_explained(html: str) -> None:
    assert "Speed is the median over training steps" in html
    assert "tokens divided by that time give less than the speed" in html


def test_no_caption_takes_overlapping_bars_for_equality(html: str) -> None:
    assert "Bars that overlap show no difference" not in html


def test_tasks_of_hostile_files_are_tables_and_curves(tmp_path: Path) -> None:
    root = write_study(tmp_path / "run")
    evil = "<script>alert(2)</script>"
    metric = {"value": 0.5, "standard_error": 0.1, "interval_95": [0.3, 0.7], "chance": 0.5}
    arms = sorted(path.name for path in (root / "arms").iterdir())
    for number, arm in enumerate(arms):
        result = {
            "schema": 1, "task": evil, "identity": "i", "metric": "acc", "num_items": 9,
            "metrics": {"acc": metric}, "groups": {"language": {evil: {"items": 9, "value": 0.5}}},
            "warning": evil, "rejected": {evil: 1},
        }  # fmt: skip
        places = [root / "arms" / arm / "evaluate"]
        places += [root / "arms" / arm / "curves" / f"step-{step:08d}" for step in (2, 4)]
        for place in places:
            write(place / "mine.json", result)
            items = [{"line": n, "values": {"acc": float(n % (2 + number))}} for n in range(9)]
            lines = "".join(json.dumps(item) + "\n" for item in items)
            (place / "mine_items.jsonl").write_text(lines, encoding="utf-8")
    out = tmp_path / "page.html"
    write_report(root, out, ReportConfig())
    html = out.read_text(encoding="utf-8")
    page = Page(html)
    assert page.problems == []
    assert "<script" not in html
    words = " ".join(page.words)
    for shown in ("at chance", "Learning curve", "Against another arm", "By language", evil):
        assert shown in words, shown
