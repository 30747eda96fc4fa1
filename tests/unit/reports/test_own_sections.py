"""Sections of a user's own: the code of the documentation, and code that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folder import write, write_study

from stamm.base.errors import ConfigError
from stamm.compare.steps import page_step
from stamm.pages.config import ReportConfig
from stamm.reports.job import write_report
from stamm.reports.steps import report_step
from stamm.reports.verb import report
from stamm.runs.job import Step
from tests.conftest import ROOT

DOCUMENT = (ROOT / "docs" / "extending" / "page_section.md").read_text()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The page of a study with the sections of mine.py."""
    monkeypatch.chdir(tmp_path)
    run = write_study(tmp_path / "runs" / "demo")

    def made(code: str, *names: str) -> str:
        Path("mine.py").write_text(code)
        config = ReportConfig(sections=tuple(f"mine.py:{name}" for name in names))
        return write_report(run, tmp_path / "report.html", config).read_text()

    return made


def test_the_section_of_the_document_stands_before_the_end(page: Callable[..., str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    html = page(code, "last_losses")
    ids = re.findall(r'<section id="([a-z-]+)"', html)
    assert ids[-2:] == ["last-losses", "again"]
    assert "Last step of every arm" in html
    assert html.count('href="#last-losses"') == 1


OWN = """
from stamm.pages.section import section_of

def hostile(run, config):
    return (section_of("mine", "<b>bold</b>", paragraphs=["<script>alert(1)</script>"]),)

def taken(run, config):
    return (section_of("again", "Again"),)

def text(run, config):
    return ("<p>text</p>",)

def fails(run, config):
    return 1 / 0
"""


def test_texts_of_a_section_are_escaped(page: Callable[..., str]) -> None:
    html = page(OWN, "hostile")
    assert "<script>" not in html and "<b>bold" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("taken", "key = 'again', which another has"),
        ("text", "returns str, not sections"),
        ("fails", "ZeroDivisionError: division by zero"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    page: Callable[..., str], name: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        page(OWN, name)
    assert problem in raised.value.line()
    assert "\n" not in raised.value.line()


@pytest.mark.parametrize("step", [report_step, page_step])
def test_the_code_is_part_of_the_step_and_loaded_before_the_run(
    step: Callable[[ReportConfig], Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ReportConfig(sections=("mine.py:hostile",))
    with pytest.raises(ConfigError, match=r"mine\.py does not exist"):
        step(config)
    Path("mine.py").write_text(OWN + "\nNUMBER = 3\n")
    assert step(config).external == {"mine.py": Path("mine.py")}
    with pytest.raises(ConfigError, match=r"has no 'hostle'.*'hostile'"):
        step(ReportConfig(sections=("mine.py:hostle",)))
    with pytest.raises(ConfigError, match=r"NUMBER is int, not a function"):
        step(ReportConfig(sections=("mine.py:NUMBER",)))
    with pytest.raises(ConfigError, match=r"must name Python functions: mine\.py:function"):
        ReportConfig(sections=("none",))


def test_stored_sections_are_executed_only_when_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_study(tmp_path / "demo")
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["report"] = {"sections": ["mine.py:fails"]}
    write(run / "config.json", stored)
    Path("mine.py").write_text("raise SystemExit('executed')")
    with pytest.raises(ConfigError, match=r"then name it on the command line: sections=mine\.py:"):
        report(run)
    Path("mine.py").write_text(OWN)
    assert 'id="mine"' in report(run, "sections=mine.py:hostile").file.read_text()
    assert 'id="mine"' not in report(run, "sections=[]").file.read_text()
